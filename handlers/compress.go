package handlers

import (
	"net/http"

	"github.com/klauspost/compress/gzhttp"
	"github.com/klauspost/compress/gzip"
)

const (
	// compressFrom is how many bytes an answer has at least that is compressed: with fewer, it is one packet in either
	// form.
	compressFrom = 1 << 10
	// gzipSuffix ends the entity tag of an answer that is compressed. It has other bytes than the one that is not, and
	// a strong tag must tell them apart.
	gzipSuffix = "-gzip"
)

// compressed compresses answers by gzip for clients that accept it. Flushed parts of an answer reach the client at
// once. Answers with a coding of their own, such as metrics, and answers to HEAD are left alone.
func compressed(next http.Handler) http.Handler {
	wrap, err := gzhttp.NewWrapper(
		gzhttp.MinSize(compressFrom), gzhttp.SuffixETag(gzipSuffix), gzhttp.EnableZstd(false),
		gzhttp.CompressionLevel(gzip.BestSpeed), // the processor has callbacks to fire
		gzhttp.SetContentType(false),
	)
	if err != nil {
		panic(err) // can't happen: none of this depends on anything
	}
	return wrap(next)
}
