"""Compute what calls cost. docs/prices.md says by which prices.

prices       the cost of a call: by own prices, as the provider states it, or by the price tables
own_prices   prices of the user's own, which come first
"""
