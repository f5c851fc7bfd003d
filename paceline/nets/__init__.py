"""Networks: encoders, recurrent cores, action heads, and the policies made of them."""
