"""Synthetic addresses identify their names."""

import ipaddress

from proxy.capture.dns.synthetic_addresses import NameTable


def test_a_name_has_one_address_of_each_kind_and_both_give_it_back() -> None:
    names = NameTable()
    first, second = names.ipv4("a.test"), names.ipv6("b.test")
    assert names.ipv4("a.test") == first
    assert (names.name_of_address(first), names.name_of_address(second)) == ("a.test", "b.test")
    assert names.name_of_address(names.ipv6("a.test")) == "a.test"


def test_other_addresses_have_no_name() -> None:
    names = NameTable()
    assert names.name_of_address(ipaddress.ip_address("203.0.113.7")) is None
    assert names.name_of_address(ipaddress.ip_address("2001:db8::1")) is None
    assert names.name_of_address(names.ipv4("a.test") + 1) is None


def test_a_full_table_forgets_the_name_that_was_not_used_for_longest() -> None:
    names = NameTable(max_names=2)
    first, _ = names.ipv4("a.test"), names.ipv4("b.test")
    names.name_of_address(first)  # a connection to it
    third = names.ipv4("c.test")
    assert names.name_of_address(third) == "c.test"
    assert names.name_of_address(first) == "a.test"
    # The third name took the second's address, and the second takes it back.
    assert names.ipv4("b.test") == third
    assert names.name_of_address(third) == "b.test"
