package audit

import (
	"io"
	"os"

	"github.com/go-json-experiment/json"
)

// File is an audit trail for a command. Writing a line blocks. A nil File writes nothing.
type File struct{ to io.Writer }

// OpenFile opens the trail that a target names, as [Open] does, except that [Stdout] stands for the other writer:
// standard output has the command's result.
func OpenFile(target string, other io.Writer) (*File, error) {
	switch target {
	case "":
		return nil, nil //nolint:nilnil // a nil File writes nothing
	case Stdout:
		return &File{other}, nil
	}
	f := &file{path: target}
	if err := f.follow(); err != nil {
		return nil, err
	}
	return &File{f.open}, nil
}

// Write adds a line, in one write, and waits until the disk has it.
func (f *File) Write(e Entry) error {
	if f == nil {
		return nil
	}
	e.clip()
	line, err := json.Marshal(&e)
	if err != nil {
		return err
	}
	if _, err := f.to.Write(append(line, '\n')); err != nil {
		return err
	}
	if opened, ok := f.to.(*os.File); ok && opened != os.Stderr { // standard error may be a terminal
		return opened.Sync()
	}
	return nil
}

// Close closes the file.
func (f *File) Close() error {
	if f == nil {
		return nil
	}
	if opened, ok := f.to.(*os.File); ok && opened != os.Stderr {
		return opened.Close()
	}
	return nil
}
