package handlers

import (
	"net/http"

	"github.com/klauspost/compress/gzhttp"
	"github.com/klauspost/compress/gzip"
)

const (
	// compressFrom is the minimum size of a compressed answer, in bytes: a smaller one is one packet in either form.
	compressFrom = 1 << 10
	// gzipSuffix ends the entity tag of a compressed answer. Its bytes differ from those of the uncompressed answer, so a
	// strong tag must differ too.
	gzipSuffix = "-gzip"
)

// compressed compresses answers by gzip for clients that accept it. Flushed parts of an answer reach the client at
// once. Answers with a coding of their own, such as metrics, and answers to HEAD are left alone.
func compressed(next http.Handler) http.Handler {
	wrap, err := gzhttp.NewWrapper(
		gzhttp.MinSize(compressFrom), gzhttp.SuffixETag(gzipSuffix), gzhttp.EnableZstd(false),
		gzhttp.CompressionLevel(gzip.BestSpeed), // callbacks need the processor
		gzhttp.SetContentType(false),
	)
	if err != nil {
		panic(err) // can't happen: all arguments are constants
	}
	return wrap(next)
}
