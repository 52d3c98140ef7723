"""Prints name and value of each sample on standard input, as the client library of Prometheus for Python reads them."""

import sys

from prometheus_client.parser import text_string_to_metric_families

for family in text_string_to_metric_families(sys.stdin.read()):
    for sample in family.samples:
        print(sample.name, sample.value)
