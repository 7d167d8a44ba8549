"""Networks: `spec` describes them without torch, the other modules run and train them with torch."""
