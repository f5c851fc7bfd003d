"""Where experience is kept between acting and learning."""
