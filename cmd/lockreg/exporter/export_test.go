package exporter

// NewOf makes an exporter of a fake.
var NewOf = newExporter
