"""Answer the DNS queries of a captive command.

resolver               answer queries
message                DNS messages
tcp_stream             DNS over TCP
datagrams              answer from the address that was asked
synthetic_addresses    addresses that stand for names
"""
