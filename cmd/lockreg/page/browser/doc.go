// Package browser tests the page in Chromium. Nothing is in it but tests.
package browser
