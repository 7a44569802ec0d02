"""What the HTTP application is made of. `stepahead.recipe.http.create_app` puts it together."""
