package intake

import (
	"net/http"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// Problem is an RFC 9457 problem document, as the API answers it.
type Problem struct {
	Type   string         `json:"type"`
	Title  string         `json:"title"`
	Status int            `json:"status"`
	Detail string         `json:"detail"`
	Errors jsontext.Value `json:"errors,omitzero"`
	Quota  jsontext.Value `json:"quota,omitzero"`
}

// ProblemMedia is the media type of problem documents.
const ProblemMedia = "application/problem+json"

// Encode returns the document.
func (p *Problem) Encode() []byte {
	b, err := json.Marshal(p)
	if err != nil { // can't be: the values come from the API's own documents
		panic(err)
	}
	return b
}

// ProblemHeader is the header with the problem in a message that was put aside.
const ProblemHeader = "carillon-problem"

// Header returns the document for that header, without the errors if it would be too large.
func (p *Problem) Header() string {
	const most = 16 << 10 // brokers bound the headers of a message, by 128 KiB for example
	text := p.Encode()
	if len(text) > most {
		short := *p
		short.Errors = nil
		text = short.Encode()
	}
	return string(text)
}

func newProblem(status int, detail string) *Problem {
	return &Problem{Type: "about:blank", Title: http.StatusText(status), Status: status, Detail: detail}
}

// invalidHeader returns the problem of one header, in the form of the API's problems of parameters.
func invalidHeader(name, message string) *Problem {
	p := newProblem(http.StatusUnprocessableEntity, "a header is invalid; see errors")
	p.Errors, _ = json.Marshal([]map[string]string{{"parameter": name, "message": message}})
	return p
}
