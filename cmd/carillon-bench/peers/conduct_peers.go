package main

import (
	"bytes"
	"context"
	"fmt"
	"time"

	"github.com/hibiken/asynq"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
)

// Each peer cancels a job by its own means.

// cancel looks up the job's id, which a real program would have kept, and calls JobCancel.
func (r *riverPeer) cancel(ctx context.Context, _ *work, i int) (string, error) {
	c, _ := r.config()
	client, err := river.NewClient(riverpgxv5.New(r.pool), &c)
	if err != nil {
		return "", err
	}
	var id int64
	if err := r.pool.QueryRow(ctx, `SELECT id FROM `+riverSchema+`.river_job WHERE (args->>'n')::int = $1`, i).
		Scan(&id); err != nil {
		return "", err
	}
	job, err := client.JobCancel(ctx, id)
	if err != nil {
		return "an error: " + err.Error(), nil
	}
	return "state " + string(job.State), nil
}

// cancel deletes the task.
func (a *asynqPeer) cancel(_ context.Context, w *work, i int) (string, error) {
	inspector := asynq.NewInspectorFromRedisClient(a.client)
	var all []*asynq.TaskInfo
	for _, list := range []func(string, ...asynq.ListOption) ([]*asynq.TaskInfo, error){
		inspector.ListActiveTasks, inspector.ListScheduledTasks, inspector.ListPendingTasks,
	} {
		tasks, err := list(asynqQueue)
		if err != nil {
			return "", err
		}
		all = append(all, tasks...)
	}
	for _, task := range all {
		if !bytes.Equal(task.Payload, w.data(i)) {
			continue
		}
		if err := inspector.DeleteTask(asynqQueue, task.ID); err != nil {
			return "an error: " + err.Error(), nil
		}
		return "no error", nil
	}
	return "", fmt.Errorf("job %d is not there", i)
}

// cancel deletes the row. The row of a running job is locked until its batch is committed.
func (t *tablePeer) cancel(ctx context.Context, w *work, i int) (string, error) {
	begun := time.Now()
	tag, err := t.pool.Exec(ctx, `DELETE FROM `+tableSchema+`.jobs WHERE payload = $1`, w.data(i))
	if waited := time.Since(begun); waited > time.Second {
		return fmt.Sprintf("%d rows, after its end", tag.RowsAffected()), err
	}
	return fmt.Sprintf("%d rows", tag.RowsAffected()), err
}

// cancel removes the member.
func (z *zsetPeer) cancel(ctx context.Context, w *work, i int) (string, error) {
	n, err := z.client.ZRem(ctx, zsetDue, w.data(i)).Result()
	return fmt.Sprintf("%d members", n), err
}
