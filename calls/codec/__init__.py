"""Read and write the formats of bodies without losing information.

json            JSON with integers of any size and decimals as written
canonical       canonical JSON (RFC 8785)
lenient_json    read members of JSON whose shape is not trusted
encoding        gzip, deflate, br and zstd, in pieces and within limits
body            read the body of a request by its content type
protobuf        read a protobuf message without its schema
rpc_body        recognise gRPC, Connect and Twirp, and read the messages in a body
elements        divide a JSON body into the elements that conversations repeat
read_arrays     find the items that an array has in common with an earlier one
read_body       read the elements of a body that earlier ones had only once
recent_values   remember values up to a total weight
"""
