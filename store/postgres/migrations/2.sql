-- A change takes effect before its deadline or never, by the clock of this server: its commit may be delayed on the
-- way, and arrive long after the rest. Times are Unix microseconds.

-- Refuses a change, and returns the time in the error.
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

-- A submission of new jobs sends its COMMIT together with its statements, so that it takes one round trip. There the
-- COMMIT itself checks the deadline. The check is written out here, because a call of the other function would be half
-- of its cost.
CREATE FUNCTION carillon.judge_at_commit() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	IF clock_timestamp() >= to_timestamp(current_setting('carillon_change.deadline')::float8 / 1e6) THEN
		PERFORM carillon.refuse_late();
	END IF;
	RETURN NULL;
END $$;

-- One row of a transaction is enough; the condition is evaluated when a row is inserted, and turns itself off. A
-- transaction that has not set the deadline, such as one of the previous version, is not checked.
CREATE CONSTRAINT TRIGGER jobs_judge AFTER INSERT ON carillon.jobs DEFERRABLE INITIALLY DEFERRED FOR EACH ROW
	WHEN (CASE WHEN current_setting('carillon_change.unjudged', true) = 'yes'
		THEN set_config('carillon_change.unjudged', 'no', true) = 'no' ELSE false END)
	EXECUTE FUNCTION carillon.judge_at_commit();
