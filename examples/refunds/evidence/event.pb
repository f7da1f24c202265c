
customer-42 «ÏÇÎ3s{"ticket": "T-118", "order": "7731", "text": "You charged me twice for the grinder!! I want my 48,00 back, today."}