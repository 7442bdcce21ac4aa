// Package site tests the site that scripts/site.sh makes of docs/, in Chromium: its links, on a phone, in dark mode, and with
// axe-core.
package site
