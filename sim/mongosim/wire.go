package mongosim

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// The messages of MongoDB's wire protocol that a client and this server use.
const (
	opReply   = 1
	opQuery   = 2004 // the first message of a connection
	opMessage = 2013
)

const headerSize = 16

// message is a client's message.
type message struct {
	id     uint32
	opCode uint32
	// command is the command with its sequences of documents as lists.
	command bson.D
}

// name returns the name of the command.
func (m *message) name() string { return m.command[0].Key }

var errMessage = errors.New("mongosim: a message can't be read")

// read reads one message.
func read(conn net.Conn) (m message, err error) {
	var header [headerSize]byte
	if _, err = io.ReadFull(conn, header[:]); err != nil {
		return m, err
	}
	size := binary.LittleEndian.Uint32(header[0:])
	m.id, m.opCode = binary.LittleEndian.Uint32(header[4:]), binary.LittleEndian.Uint32(header[12:])
	if size < headerSize || size > 64<<20 {
		return m, errMessage
	}
	body := make([]byte, size-headerSize)
	if _, err = io.ReadFull(conn, body); err != nil {
		return m, err
	}
	switch m.opCode {
	case opQuery:
		body = body[4:] // flags
		for body[0] != 0 {
			body = body[1:] // the collection's name
		}
		m.command, _, err = document(body[1+8:])
	case opMessage:
		m.command, err = sections(body[4:])
	default:
		err = fmt.Errorf("%w: op code %d", errMessage, m.opCode)
	}
	return m, err
}

// document decodes the document at the beginning of some bytes, and returns the remaining bytes.
func document(b []byte) (d bson.D, rest []byte, err error) {
	if len(b) < 4 {
		return nil, nil, errMessage
	}
	size := int(binary.LittleEndian.Uint32(b))
	if size > len(b) {
		return nil, nil, errMessage
	}
	err = bson.Unmarshal(b[:size], &d)
	return d, b[size:], err
}

// sections decodes the sections of a message. Each sequence of documents becomes a field of the command.
func sections(b []byte) (command bson.D, err error) {
	var sequences bson.D
	for len(b) > 0 {
		kind := b[0]
		if b = b[1:]; kind == 0 {
			if command, b, err = document(b); err != nil {
				return nil, err
			}
			continue
		}
		size := int(binary.LittleEndian.Uint32(b))
		part, list, end := b[4:size], bson.A{}, 0
		b = b[size:]
		for part[end] != 0 {
			end++
		}
		name := string(part[:end])
		for part = part[end+1:]; len(part) > 0; {
			var d bson.D
			if d, part, err = document(part); err != nil {
				return nil, err
			}
			list = append(list, d)
		}
		sequences = append(sequences, bson.E{Key: name, Value: list})
	}
	if len(command) == 0 {
		return nil, errMessage
	}
	return append(command, sequences...), nil
}

// write writes the answer to a message.
func write(conn net.Conn, m *message, answer bson.D) error {
	body, err := bson.Marshal(answer)
	if err != nil {
		return err
	}
	var b []byte
	if m.opCode == opQuery {
		b = make([]byte, headerSize+20, headerSize+20+len(body))
		binary.LittleEndian.PutUint32(b[headerSize+16:], 1) // documents
		binary.LittleEndian.PutUint32(b[12:], opReply)
	} else {
		b = make([]byte, headerSize+5, headerSize+5+len(body))
		binary.LittleEndian.PutUint32(b[12:], opMessage)
	}
	b = append(b, body...)
	binary.LittleEndian.PutUint32(b[0:], uint32(len(b)))
	binary.LittleEndian.PutUint32(b[8:], m.id)
	_, err = conn.Write(b)
	return err
}
