"""Certificates, and the environment that makes clients trust them.

ca                       the certificate authority of a data directory
certificate_directory    a directory of certificates for OpenSSL
truststore               the format of Java
client_environment       the variables that clients read
"""
