"""Answer the DNS queries of a captive command.

resolver               answer queries
message                DNS messages
tcp_stream             DNS over TCP
datagrams              answer datagrams from the address that they were sent to
synthetic_addresses    synthetic addresses for names
"""
