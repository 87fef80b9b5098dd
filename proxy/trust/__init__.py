"""Certificates, and the environment variables that make clients trust them.

ca                       the certificate authority of a data directory
leaves                   sign certificates for hosts
certificate_directory    a directory of certificates for OpenSSL
truststore               a truststore for Java
client_environment       the environment variables that clients read
"""
