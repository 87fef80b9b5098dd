"""Search bytes for secrets, however they are divided and encoded.

scanner            search a stream of bytes
layered_scanner    search through escapes and base64
base64_scanner     search inside base64
encoded_text       recognise encoded text
"""
