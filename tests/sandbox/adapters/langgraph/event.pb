
customer-42€ ñÂ±4Refund order 7, please.