"""Recordings of other programs, and files for other programs.

A reader turns a file into interactions, one by one; `adopt` redacts them and writes a bundle, as if they had been recorded
here. Nothing in a file is executed, and a bad interaction costs only itself.

read          find the format of a file
contents      interactions, and what could not be one
adopt         from interactions to a bundle
vcr           VCR cassettes
cassetter     cassettes of cassetter
har           HTTP archives
httprr        traces of Go's httprr
jsonl         fixtures of llm-fixture-replay
proxies       recordings of Azure's test proxy and of Hoverfly
others        recordings of ExVCR, ReqCassette, nock and others
parts         what all formats have in common
yamlvalues    YAML as plain values
write         write VCR cassettes and HTTP archives
"""
