"""Active ISO 4217 currencies and their minor units.

Source: ISO 4217 list one, as published by its maintenance agency (SIX) on 2026-01-01. Codes that
have no minor unit (metals, XDR, XTS, XXX and the like) are left out: no amount can be written in
them as an integer.
"""

_CODES_BY_EXPONENT = {
    0: """
        BIF CLP DJF GNF ISK JPY KMF KRW PYG RWF UGX UYI VND VUV XAF XOF XPF
    """,
    2: """
        AED AFN ALL AMD AOA ARS AUD AWG AZN BAM BBD BDT BMD BND BOB BOV BRL BSD BTN BWP BYN BZD
        CAD CDF CHE CHF CHW CNY COP COU CRC CUP CVE CZK DKK DOP DZD EGP ERN ETB EUR FJD FKP GBP
        GEL GHS GIP GMD GTQ GYD HKD HNL HTG HUF IDR ILS INR IRR JMD KES KGS KHR KPW KYD KZT LAK
        LBP LKR LRD LSL MAD MDL MGA MKD MMK MNT MOP MRU MUR MVR MWK MXN MXV MYR MZN NAD NGN NIO
        NOK NPR NZD PAB PEN PGK PHP PKR PLN QAR RON RSD RUB SAR SBD SCR SDG SEK SGD SHP SLE SOS
        SRD SSP STN SVC SYP SZL THB TJS TMT TOP TRY TTD TWD TZS UAH USD USN UYU UZS VED VES WST
        XAD XCD XCG YER ZAR ZMW ZWG
    """,
    3: "BHD IQD JOD KWD LYD OMR TND",
    4: "CLF UYW",
}

#: Currency code -> decimal places of its minor unit.
EXPONENTS: dict[str, int] = {
    code: exponent for exponent, codes in _CODES_BY_EXPONENT.items() for code in codes.split()
}

CODES: tuple[str, ...] = tuple(sorted(EXPONENTS))


def format_amount(*, amount: int, currency: str) -> str:
    """Minor units as people write them: 1250 EUR is "12.50 EUR", 1250 JPY is "1250 JPY"."""
    if currency not in EXPONENTS:
        # Somebody else's books have it, or ours of when it was one.
        return f"{amount} {currency} (minor units)"
    exponent = EXPONENTS[currency]
    sign = "-" if amount < 0 else ""
    digits = str(abs(amount)).rjust(exponent + 1, "0")
    if not exponent:
        return f"{sign}{digits} {currency}"
    return f"{sign}{digits[:-exponent]}.{digits[-exponent:]} {currency}"
