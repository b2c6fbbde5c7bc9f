package main

import (
	"bytes"
	"encoding/binary"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// noSpace is SQLite's text for a disk without space. FerretDB passes it on with the code of an internal error.
const noSpace = "database or disk is full"

const (
	codeInternalError  = 1
	codeOutOfDiskSpace = 14031 // MongoDB's
)

// tellSpace gives a reply that tells of a full disk MongoDB's code for that. It does not change another reply.
func tellSpace(reply message) (message, error) {
	if reply.opcode() != opMsg || !bytes.Contains(reply, []byte(noSpace)) {
		return reply, nil
	}
	var answer bson.D
	if err := bson.Unmarshal(reply[document:], &answer); err != nil {
		return nil, err
	}
	for i, e := range answer {
		switch {
		case e.Key == "code" && e.Value == int32(codeInternalError):
			answer[i].Value = int32(codeOutOfDiskSpace)
		case e.Key == "codeName" && e.Value == "InternalError":
			answer[i].Value = "OutOfDiskSpace"
		}
	}
	section, err := bson.Marshal(answer)
	if err != nil {
		return nil, err
	}
	reply = append(bytes.Clone(reply[:document]), section...)
	binary.LittleEndian.PutUint32(reply, uint32(len(reply)))
	return reply, nil
}
