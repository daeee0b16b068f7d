"""Reads media from where a request says they are, and refuses what it must not reach.

`fetcher` gets http: and https: URLs from addresses that `addresses` allows; `local` decodes data: URLs and reads files
under the allowed folder. All of them count bytes against the `Budget` of the prompt, and return the encoded file.
"""
