"""Settings of the reference project. Every value that differs between machines is an environment
variable; `.env.example` lists them. Safe for production when only SECRET_KEY, ALLOWED_HOSTS,
DATABASE_URL and REDIS_URL are given."""

from pathlib import Path

import environ
from django.core.exceptions import ImproperlyConfigured

from config.logs import logging_config

BASE_DIR = Path(__file__).resolve().parent.parent
LOOPBACK = ["localhost", "127.0.0.1", "[::1]"]

env = environ.Env()
env.read_env(BASE_DIR / ".env")

DEBUG = env.bool("DEBUG", default=False)
# What the demo's users need around them: a CORS origin, static files without collectstatic, the
# retry lab. Its passwords are public, so it refuses hosts other than this machine.
DEMO = env.bool("DEMO", default=False)
DEMO_FAULTS = env.bool("DEMO_FAULTS", default=False)
# Off only where no TLS can exist: `make run` on loopback, and the tests.
HTTPS = env.bool("HTTPS", default=not DEBUG)


def _secret_key() -> str:
    default = "insecure: for DEBUG only" if DEBUG else ""
    if key := env.str("SECRET_KEY", default=default):
        return key
    raise ImproperlyConfigured(
        "SECRET_KEY is not set. Set it to fifty or more random characters, for example from "
        "`python -c 'import secrets; print(secrets.token_urlsafe(50))'`, or set DEBUG=1 on a "
        "developer's machine."
    )


def _allowed_hosts() -> list[str]:
    hosts: list[str] = env.list("ALLOWED_HOSTS", default=LOOPBACK if DEBUG or DEMO else [])
    if DEMO and not set(hosts) <= set(LOOPBACK):
        raise ImproperlyConfigured(
            f"DEMO has public passwords, so ALLOWED_HOSTS may hold only {', '.join(LOOPBACK)}."
        )
    return hosts


SECRET_KEY = _secret_key()
ALLOWED_HOSTS = _allowed_hosts()
if DEMO_FAULTS and not DEMO:
    raise ImproperlyConfigured("DEMO_FAULTS lets a client break requests: it needs DEMO=1.")

INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    # runserver must not serve static files itself: WhiteNoise does, as in production.
    "whitenoise.runserver_nostatic",
    "django.contrib.staticfiles",
    "corsheaders",
    "rest_framework",
    "drf_spectacular",
    "drf_spectacular_sidecar",
    "django_structlog",
    "idempotency",
    "payments",
]
if DEMO:
    INSTALLED_APPS.append("config.lab")

MIDDLEWARE = [
    "idempotency.http.request_ids.request_id_middleware",
    "django.middleware.security.SecurityMiddleware",
    "whitenoise.middleware.WhiteNoiseMiddleware",
    "corsheaders.middleware.CorsMiddleware",
    "django_structlog.middlewares.RequestMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    # What people read comes in their browser's language; codes and names stay as they are.
    "django.middleware.locale.LocaleMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
]
if DEMO_FAULTS:
    MIDDLEWARE.append("config.faults.middleware")

ROOT_URLCONF = "config.urls"
WSGI_APPLICATION = "config.wsgi.application"
ASGI_APPLICATION = "config.asgi.application"

TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "DIRS": [BASE_DIR / "templates"],
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ],
        },
    },
]

# --- Database -------------------------------------------------------------------------------------

# Seconds. Both end a statement before the web server gives its worker up (config/gunicorn.py) and
# long before a lease is over, so a request never outlives its claim inside the database.
DATABASE_STATEMENT_TIMEOUT = env.float("DATABASE_STATEMENT_TIMEOUT", default=15.0)
DATABASE_LOCK_TIMEOUT = env.float("DATABASE_LOCK_TIMEOUT", default=5.0)


def _database() -> dict[str, object]:
    database: dict[str, object] = env.db_url("DATABASE_URL")
    options: dict[str, object] = dict(database.get("OPTIONS") or {})  # type: ignore[call-overload]
    # A request is atomic only where its view says so: the claim must commit before the work.
    database["ATOMIC_REQUESTS"] = False
    if database["ENGINE"] == "django.db.backends.postgresql":
        # One connection a thread, kept and checked before use. A pool would serve as well while
        # the database is up, but its reconnect back-off grows to minutes during an outage, whereas
        # a thread's own connection is tried again by the next request. The number of connections
        # is bounded all the same: gunicorn's threads and Celery's processes are.
        database["CONN_MAX_AGE"] = env.int("DATABASE_CONN_MAX_AGE", default=60)
        database["CONN_HEALTH_CHECKS"] = True
        # Two seconds is libpq's shortest; a refused connection fails at once.
        options.setdefault("connect_timeout", 2)
        # Claims and completions are prepared after five of them. None behind a pooler that cannot
        # (PgBouncer before 1.21).
        options.setdefault("prepare_threshold", 5)
        options.setdefault(
            "options",
            f"-c statement_timeout={DATABASE_STATEMENT_TIMEOUT * 1000:.0f} "
            f"-c lock_timeout={DATABASE_LOCK_TIMEOUT * 1000:.0f} "
            "-c idle_in_transaction_session_timeout=60000",
        )
    elif database["ENGINE"] == "django.db.backends.sqlite3":
        # DEFERRED, the default, fails nearly every concurrent write with "database is locked".
        options.setdefault("transaction_mode", "IMMEDIATE")
        options.setdefault("timeout", 20)
        options.setdefault("init_command", "PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL")
    database["OPTIONS"] = options
    return database


# Without a URL there is no database: `check` and `makemigrations` still work, anything that needs
# one says so. Falling back to a file would lose payments on the first deployment that forgot it.
DATABASES = {"default": _database()} if env.str("DATABASE_URL", default="") else {}
if not DATABASES and not DEBUG:
    raise ImproperlyConfigured(
        "DATABASE_URL is not set. Set it, for example to postgres://user@host/name, or start "
        "`make run`, which brings a database of its own."
    )
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

# --- Redis, Celery --------------------------------------------------------------------------------

REDIS_URL = env.str("REDIS_URL", default="")
if not REDIS_URL and not DEBUG:
    # A broker in memory is one for each process: no job that beat sends would ever run.
    raise ImproperlyConfigured(
        "REDIS_URL is not set. Set it, for example to redis://host/0, or start `make run`, which "
        "brings a server of its own."
    )

CELERY_BROKER_URL = REDIS_URL or "memory://"
CELERY_TASK_IGNORE_RESULT = True
# Every task here is safe to run twice, so a task is only acknowledged once it is done.
CELERY_TASK_ACKS_LATE = True
CELERY_TASK_REJECT_ON_WORKER_LOST = True
CELERY_WORKER_PREFETCH_MULTIPLIER = 1
CELERY_WORKER_CANCEL_LONG_RUNNING_TASKS_ON_CONNECTION_LOSS = True
CELERY_TASK_SOFT_TIME_LIMIT = 90
CELERY_TASK_TIME_LIMIT = 120
# Longer than a task may run, or Redis hands a running task to a second worker.
CELERY_BROKER_TRANSPORT_OPTIONS = {
    "visibility_timeout": 300,
    "socket_connect_timeout": 1,
    "socket_timeout": 5,
}
CELERY_BROKER_CONNECTION_RETRY_ON_STARTUP = True
CELERY_BROKER_CONNECTION_MAX_RETRIES = None
# A request that enqueues must not hang while Redis is away; beat repeats what matters.
CELERY_TASK_PUBLISH_RETRY_POLICY = {"max_retries": 1, "interval_start": 0, "interval_step": 0.2}
CELERY_WORKER_HIJACK_ROOT_LOGGER = False
CELERY_TIMEZONE = "UTC"
# Seconds between two runs of the recovery jobs; see config/celery.py.
IDEMPOTENCY_BEAT = env.float("IDEMPOTENCY_BEAT", default=10.0)

# --- HTTP -----------------------------------------------------------------------------------------

SESSION_COOKIE_SECURE = CSRF_COOKIE_SECURE = HTTPS
SESSION_COOKIE_HTTPONLY = True
SECURE_SSL_REDIRECT = HTTPS
# Probes and scrapers speak plain HTTP to the process itself.
SECURE_REDIRECT_EXEMPT = [r"^healthz$", r"^readyz$", r"^metrics$"]
SECURE_HSTS_SECONDS = env.int("SECURE_HSTS_SECONDS", default=31_536_000) if HTTPS else 0
SECURE_HSTS_INCLUDE_SUBDOMAINS = SECURE_HSTS_PRELOAD = HTTPS
SECURE_REFERRER_POLICY = "same-origin"
X_FRAME_OPTIONS = "DENY"
# "X-Forwarded-Proto" behind a proxy that sets it and strips the client's own; never otherwise.
if PROXY_PROTO_HEADER := env.str("PROXY_PROTO_HEADER", default=""):
    SECURE_PROXY_SSL_HEADER = (
        "HTTP_" + PROXY_PROTO_HEADER.upper().replace("-", "_"),
        "https",
    )
CSRF_TRUSTED_ORIGINS = env.list("CSRF_TRUSTED_ORIGINS", default=[])
DATA_UPLOAD_MAX_MEMORY_SIZE = env.int("DATA_UPLOAD_MAX_MEMORY_SIZE", default=2_621_440)

CORS_ALLOWED_ORIGINS = env.list(
    "CORS_ALLOWED_ORIGINS", default=["http://localhost:3000"] if DEMO else []
)
CORS_ALLOW_HEADERS = [
    "accept",
    "authorization",
    "content-type",
    "idempotency-key",
    "if-match",
    "x-request-deadline-ms",
    "x-request-id",
    "x-retry-attempt",
]
CORS_EXPOSE_HEADERS = [
    "ETag",
    "Idempotent-Replayed",
    "Link",
    "Location",
    "Retry-After",
    "X-Request-ID",
]
CORS_URLS_REGEX = r"^/(v1|api)/.*$"

AUTH_PASSWORD_VALIDATORS = [
    {"NAME": f"django.contrib.auth.password_validation.{name}"}
    for name in (
        "UserAttributeSimilarityValidator",
        "MinimumLengthValidator",
        "CommonPasswordValidator",
        "NumericPasswordValidator",
    )
]

REST_FRAMEWORK = {
    "DEFAULT_AUTHENTICATION_CLASSES": ["payments.authentication.ApiKeyAuthentication"],
    "DEFAULT_PERMISSION_CLASSES": ["rest_framework.permissions.IsAuthenticated"],
    "DEFAULT_RENDERER_CLASSES": ["rest_framework.renderers.JSONRenderer"],
    "DEFAULT_PARSER_CLASSES": [
        "rest_framework.parsers.JSONParser",
        "rest_framework.parsers.FormParser",
        "rest_framework.parsers.MultiPartParser",
    ],
    "EXCEPTION_HANDLER": "payments.exception_handler.exception_handler",
    "DEFAULT_SCHEMA_CLASS": "drf_spectacular.openapi.AutoSchema",
    "TEST_REQUEST_DEFAULT_FORMAT": "json",
    # The document has one version. Any other would go into a header of its answer as it came.
    "ALLOWED_VERSIONS": ["1.0.0"],
}

SPECTACULAR_SETTINGS = {
    "TITLE": "Payments",
    "DESCRIPTION": "Charges, refunds and transfers that are safe to retry."
    + (" See for yourself in the [retry lab](/lab/)." if DEMO else ""),
    "VERSION": "1.0.0",
    "SERVE_INCLUDE_SCHEMA": False,
    "SERVE_PERMISSIONS": ["rest_framework.permissions.AllowAny"],
    # From the sidecar package: the page works without the internet.
    "SWAGGER_UI_DIST": "SIDECAR",
    "SWAGGER_UI_FAVICON_HREF": "SIDECAR",
    "REDOC_DIST": "SIDECAR",
}

LANGUAGE_CODE = "en"
LANGUAGES = [("en", "English"), ("de", "Deutsch")]
TIME_ZONE = "UTC"
USE_I18N = True
USE_TZ = True

STATIC_URL = "static/"
STATIC_ROOT = BASE_DIR / "staticfiles"
# Looks files up at each request for one, and spares `make run` a collectstatic.
WHITENOISE_USE_FINDERS = WHITENOISE_AUTOREFRESH = DEBUG or DEMO

# --- The apps -------------------------------------------------------------------------------------

IDEMPOTENCY: dict[str, object] = {
    "LEASE": env.float("IDEMPOTENCY_LEASE", default=30.0),
    # Above it no operator settles a payment alone: {"EUR": 100000, "*": 0}, in minor units.
    "FOUR_EYES_ABOVE": env.json("FOUR_EYES_ABOVE", default=None),
    "RECONCILE_AFTER": env.float("IDEMPOTENCY_RECONCILE_AFTER", default=60.0),
    "RECONCILE_ALERT_AFTER": env.float("IDEMPOTENCY_RECONCILE_ALERT_AFTER", default=900.0),
    "REDIS_URL": REDIS_URL or None,
    # The one that writes first; "none" there writes in clear. See Privacy in the README.
    "ENCRYPTION_KEYS": [
        None if key == "none" else key for key in env.list("ENCRYPTION_KEYS", default=[])
    ],
}

# "http": the gateway at GATEWAY_URL, which speaks as the simulated one does. "stripe": Stripe.
GATEWAY = env.str("GATEWAY", default="http")
GATEWAY_URL = env.str("GATEWAY_URL", default="http://127.0.0.1:9000" if DEBUG else "")
if GATEWAY == "http" and not GATEWAY_URL:
    # A default would hand card tokens to whatever listens there.
    raise ImproperlyConfigured(
        "GATEWAY_URL is not set. Set it to the gateway's address, or GATEWAY=stripe; `make run` "
        "brings a simulated one."
    )
# Seconds for one of the three attempts at a call; all of them together must fit into the lease.
GATEWAY_TIMEOUT = env.float("GATEWAY_TIMEOUT", default=5.0)
# Calls at once in a process, fewer than gunicorn's threads: a gateway that is slow must leave one
# for whoever does not need it.
GATEWAY_CALLS = env.int("GATEWAY_CALLS", default=max(1, env.int("WEB_THREADS", default=4) - 1))


def _gateway() -> dict[str, object]:
    if GATEWAY == "http":
        # False for a gateway that does not honour the key: what is unknown is then looked up.
        dedupes = env.bool("GATEWAY_DEDUPES", default=True)
        backend = "payments.gateways.http.HttpGateway"
        return {"BACKEND": backend, "URL": GATEWAY_URL, "DEDUPES": dedupes}
    if GATEWAY == "stripe":
        return {
            "BACKEND": "payments.gateways.stripe.StripeGateway",
            "API_KEY": env.str("STRIPE_API_KEY", default=""),
            "WEBHOOK_SECRET": env.str("STRIPE_WEBHOOK_SECRET", default=""),
            "CAPTURE": env.str("STRIPE_CAPTURE", default="automatic"),
        }
    raise ImproperlyConfigured(f"GATEWAY is http or stripe, not {GATEWAY!r}.")


PAYMENTS_GATEWAY = {
    **_gateway(),
    "TIMEOUT": GATEWAY_TIMEOUT,
    "ATTEMPTS": 3,
    "CALLS": GATEWAY_CALLS,
    "REDIS_URL": REDIS_URL or None,
}

PAYMENTS_WEBHOOKS = {
    # Never in production: whoever may write an endpoint could call what listens on this machine.
    "ALLOW_LOOPBACK": DEMO,
    # What the gateway signs its events with; the newest first, the others until nobody uses them.
    "GATEWAY_SECRETS": env.list("GATEWAY_WEBHOOK_SECRETS", default=[]),
}

# What Prometheus sends as a bearer token. Without one there is no /metrics: payments/metrics.py.
METRICS_TOKEN = env.str("METRICS_TOKEN", default="")

# --- Logs -----------------------------------------------------------------------------------------

LOG_LEVEL = env.str("LOG_LEVEL", default="INFO")
LOG_FORMAT = env.str("LOG_FORMAT", default="console" if DEBUG else "json")

LOGGING = logging_config(level=LOG_LEVEL, form=LOG_FORMAT)
# Nobody is asked for: see config/logs.py.
DJANGO_STRUCTLOG_USER_ID_FIELD = ""
# The middleware before it has seen to that.
DJANGO_STRUCTLOG_TRUST_UPSTREAM_REQUEST_ID = True
