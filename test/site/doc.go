// Package site tests the site that scripts/site.sh makes of docs/, in Chromium: links, a phone, the dark, and axe-core.
package site
