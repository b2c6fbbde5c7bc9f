package mongodb

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
)

// The collections of formats before 5. Since 5, their documents are records.
const (
	tenantsBefore  = "tenants"
	replicasBefore = "replicas"
)

// upgradeLease is the time for which one replica alone may upgrade. It exceeds the time within which that replica's
// writes can take effect, see [store.Within].
const upgradeLease = 2 * store.Within

// upgrade converts a database of an older format to the present one. After an interruption it starts again from the
// beginning, and leaves records that were moved already as they are.
//
// One replica upgrades at a time, and the others wait. Once the format is raised, a replica may serve; from then on no
// replica may insert a record that a client has deleted meanwhile. So each page is moved within a lease, by writes that
// can't take effect after its end, and only the replica that still has the lease raises the format.
func (s *Store) upgrade(ctx context.Context) error {
	token := job.NewToken()
	for {
		version, err := s.readFormat(ctx)
		if err != nil || version >= format {
			return err
		}
		if moved, err := s.moveBefore(ctx, token); err != nil {
			return err
		} else if moved {
			_, err := s.meta.UpdateOne(ctx, bson.M{"_id": formatID, "version": version, "upgrade.token": token},
				bson.M{"$set": bson.M{"version": format, "leftovers": true}, "$unset": bson.M{"upgrade": ""}})
			if err != nil {
				return mapError(err)
			}
			continue // check that this replica made the change
		}
		select {
		case <-ctx.Done():
			return mapError(ctx.Err())
		case <-time.After(200 * time.Millisecond):
		}
	}
}

// holdUpgrade takes or renews the upgrade lease for the replica with this token. It returns whether that succeeded.
func (s *Store) holdUpgrade(ctx context.Context, token string) (bool, error) {
	now := s.clock.now() // never ahead of the server's clock, so that no lease is taken before its end
	result, err := s.meta.UpdateOne(ctx, bson.M{
		"_id": formatID, "version": bson.M{"$lt": format},
		"$nor": bson.A{bson.M{"upgrade.until": bson.M{"$gt": now}, "upgrade.token": bson.M{"$ne": token}}},
	}, bson.M{"$set": bson.M{"upgrade": bson.M{"token": token, "until": now.Add(upgradeLease)}}})
	return err == nil && result.MatchedCount > 0, mapError(err)
}

// moveBefore turns the tenants and replicas of formats before 5 into records. It returns whether all were moved under
// the lease.
func (s *Store) moveBefore(ctx context.Context, token string) (done bool, err error) {
	for _, of := range []struct {
		collection string
		records    func(d *documentBefore) []store.RecordChange
	}{
		{tenantsBefore, (*documentBefore).tenantRecords},
		{replicasBefore, (*documentBefore).replicaRecords},
	} {
		for after, more := "", true; more; {
			var held bool
			if held, after, more, err = s.movePage(ctx, token, of.collection, after, of.records); !held || err != nil {
				return false, err
			}
		}
	}
	return true, nil
}

// movePage moves a page of a collection, if this replica has the lease. It returns where the next page begins.
func (s *Store) movePage(
	ctx context.Context, token, collection, after string, records func(d *documentBefore) []store.RecordChange,
) (held bool, next string, more bool, err error) {
	ctx, cancel := within(ctx)
	defer cancel()
	if held, err = s.holdUpgrade(ctx, token); !held || err != nil {
		return held, "", false, err
	}
	page, err := find[documentBefore](ctx, s.meta.Database().Collection(collection), bson.M{"_id": bson.M{"$gt": after}},
		options.Find().SetSort(keys("_id")).SetLimit(togetherMost))
	if err != nil {
		return held, "", false, err
	}
	var changes []store.RecordChange
	for i := range page {
		changes, next = append(changes, records(&page[i])...), page[i].ID
	}
	for _, answer := range s.WriteRecords(ctx, changes) {
		if answer != nil && !errors.Is(answer, store.ErrPrecondition) {
			return held, "", false, answer
		}
	}
	return held, next, len(page) == togetherMost, nil
}

// documentBefore is a document of the collection tenants or of the collection replicas, as formats before 5 had them.
type documentBefore struct {
	ID        string    `bson:"_id"`
	FirstSeen time.Time `bson:"firstSeen"`
	Settings  []byte    `bson:"settings"`
	Until     time.Time `bson:"until"`
}

func (d *documentBefore) tenantRecords() []store.RecordChange {
	known := d.record("tenants", fmt.Appendf(nil, `{"firstSeen":%d}`, d.FirstSeen.UnixMilli()))
	if len(d.Settings) == 0 {
		return []store.RecordChange{known}
	}
	return []store.RecordChange{known, d.record("tenant-settings", d.Settings)}
}

func (d *documentBefore) replicaRecords() []store.RecordChange {
	c := d.record("replicas", []byte{})
	c.ExpiresAt = d.Until
	return []store.RecordChange{c}
}

// record returns the change that inserts a record unless it exists.
func (d *documentBefore) record(collection string, body []byte) store.RecordChange {
	now := time.Now()
	return store.RecordChange{
		Collection: collection, Key: d.ID, Version: job.NewRevision(now), Body: body,
		If: store.RecordCondition{Absent: true}, Now: now,
	}
}

// dropLeftovers drops the collections whose documents have become records, once the upgrade is complete.
func (s *Store) dropLeftovers(ctx context.Context) error {
	err := s.meta.FindOne(ctx, bson.M{"_id": formatID, "leftovers": true}).Err()
	if errors.Is(err, mongo.ErrNoDocuments) {
		return nil
	}
	if err != nil {
		return mapError(err)
	}
	for _, collection := range []string{tenantsBefore, replicasBefore} {
		if err := s.meta.Database().Collection(collection).Drop(ctx); err != nil {
			return mapError(err)
		}
	}
	_, err = s.meta.UpdateOne(ctx, bson.M{"_id": formatID}, bson.M{"$unset": bson.M{"leftovers": ""}})
	return mapError(err)
}
