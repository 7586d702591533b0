# The three entrances that do not need npm's words. BASE_URL names a running server.
BASE_URL ?= http://localhost:8080

.PHONY: check test validate

check:
	npm run check

test:
	BASE_URL=$(BASE_URL) npm run smoke

validate:
	npm run validate
