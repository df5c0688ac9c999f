"""Prices of instances by the hour: from AWS's price list, or from a file of the user's."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping, Sequence
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any

from steelyard.aws.session import Aws, aws_errors
from steelyard_base.exit_codes import CommandError, ExitCode

HOURS_PER_MONTH = 730
"""A twelfth of 365 days, which is what AWS's own estimates use."""

_LARGEST = Decimal(10_000)


def read_prices(path: Path) -> dict[str, Decimal]:
    """Prices in USD per hour by instance type, from a TOML file with one table ``usd_per_hour``.

    Raises:
        CommandError: The file cannot be read, or a price is not a number from 0 to 10,000.
    """
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"), parse_float=Decimal)["usd_per_hour"]
        items = list(table.items())
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError, KeyError, AttributeError) as error:
        raise CommandError(
            f"cannot read prices from {path}: {type(error).__name__}: {error}",
            code=ExitCode.USAGE,
            hint='It is a TOML file such as: [usd_per_hour] and then "ml.c7i.xlarge" = 0.25, one type on a line.',
        ) from error
    prices = {}
    for name, value in items:
        if not _is_price(value):
            raise CommandError(
                f"{path}: the price of {name} is {value!r}; it must be 0 to {_LARGEST:,} USD per hour",
                code=ExitCode.USAGE,
            )
        prices[name] = Decimal(value)
    return prices


def _is_price(value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | Decimal):
        return False
    return Decimal(value).is_finite() and 0 <= value <= _LARGEST


def ask_prices(aws: Aws, instance_types: Sequence[str]) -> dict[str, Decimal]:
    """On-demand prices of endpoints in USD per hour, from AWS's Price List; types that it does not have are left out.

    Raises:
        CommandError: The Price List cannot be asked.
    """
    prices = {}
    client = aws.client("pricing", region="us-east-1")
    for name in instance_types:
        wanted = [
            {"Type": "TERM_MATCH", "Field": field, "Value": value}
            for field, value in (("regionCode", aws.region), ("instanceName", name))
        ]
        with aws_errors():
            pages = list(client.get_paginator("get_products").paginate(ServiceCode="AmazonSageMaker", Filters=wanted))
        products = [json.loads(each) for page in pages for each in page["PriceList"]]
        if (price := hosting_price(products, name)) is not None:
            prices[name] = price
    return prices


def hosting_price(products: Sequence[Mapping[str, Any]], instance_type: str) -> Decimal | None:
    """The price per hour of an endpoint's instance among products of the Price List; None without one."""
    for product in products:
        # Prices of notebooks, training and processing on the same type stand beside it.
        usage = str(product.get("product", {}).get("attributes", {}).get("usagetype", ""))
        if usage.rpartition("-")[2] != f"Host:{instance_type}":
            continue
        for term in product.get("terms", {}).get("OnDemand", {}).values():
            for dimension in term.get("priceDimensions", {}).values():
                try:
                    price = Decimal(dimension["pricePerUnit"]["USD"])
                except (KeyError, InvalidOperation, TypeError):
                    continue
                if price > 0:
                    return price
    return None
