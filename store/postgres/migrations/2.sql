-- A change takes effect before its time is over or never, by the clock of this server: its commit may come long after the rest
-- of it, if that is held up on the way. Times are Unix microseconds.

-- Refuses a change, and tells the time.
CREATE FUNCTION carillon.refuse_late() RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	RAISE EXCEPTION 'the time of the change is over'
		USING ERRCODE = 'CL001', DETAIL = (extract(epoch FROM clock_timestamp()) * 1e6)::bigint::text;
END $$;

-- Fails once the deadline has passed. A change calls it in one message with its COMMIT.
CREATE FUNCTION carillon.judge(deadline bigint) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	IF clock_timestamp() >= to_timestamp(deadline / 1e6) THEN
		PERFORM carillon.refuse_late();
	END IF;
END $$;

-- A submission of new jobs sends its COMMIT together with what is to be committed, so that it takes one round trip. There, COMMIT
-- itself judges. It is written out here, since a call of the other function is half of what that costs.
CREATE FUNCTION carillon.judge_at_commit() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	IF clock_timestamp() >= to_timestamp(current_setting('carillon_change.deadline')::float8 / 1e6) THEN
		PERFORM carillon.refuse_late();
	END IF;
	RETURN NULL;
END $$;

-- One row of a transaction is enough; the condition is looked at when a row is inserted, and turns itself off. A transaction that has
-- not set it, as of the version before, is not judged.
CREATE CONSTRAINT TRIGGER jobs_judge AFTER INSERT ON carillon.jobs DEFERRABLE INITIALLY DEFERRED FOR EACH ROW
	WHEN (CASE WHEN current_setting('carillon_change.unjudged', true) = 'yes'
		THEN set_config('carillon_change.unjudged', 'no', true) = 'no' ELSE false END)
	EXECUTE FUNCTION carillon.judge_at_commit();
