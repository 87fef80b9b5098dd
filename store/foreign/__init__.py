"""Import recordings of other programs, and export to their formats.

A reader turns a file into interactions, one by one; `adopt` redacts them and writes a bundle, as if they had been recorded
here. Nothing in a file is executed, and an unreadable interaction is skipped without affecting the others.

read          find the format of a file
first_day     find the day on which a file begins
contents      interactions, and entries that cannot be imported
adopt         turn interactions into a bundle
vcr           VCR cassettes
cassetter     cassettes of cassetter
har           HTTP archives
httprr        traces of Go's httprr
jsonl         fixtures of llm-fixture-replay
proxies       recordings of Azure's test proxy and of Hoverfly
others        recordings of ExVCR, ReqCassette, nock and others
parts         read the values that all formats have in common
yamlvalues    YAML as plain values
write         write VCR cassettes and HTTP archives
"""
