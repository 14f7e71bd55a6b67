from django.apps import AppConfig


class LabConfig(AppConfig):
    name = "config.lab"
    label = "lab"
    verbose_name = "Retry lab"
