package job

import (
	"math/bits"
	"time"
)

// A wall time is the time that clocks show, counted like Unix seconds as if there were no zones. This file finds the
// wall times that a crontab's fields match. The search goes from field to field, months first. It does not step through
// the times in between.

const (
	perMinute = 60
	perHour   = 60 * perMinute
	perDay    = 24 * perHour
)

// rarest is the largest number of months between two matching dates: 40 years from a 29th of February on one day of the
// week to the next, since a year such as 2100 is no leap year.
const rarest = 40 * 12

// nextWall returns the first matching wall time at or after a given one.
func (f fields) nextWall(wall int64) (int64, bool) {
	day, second := divide(wall)
	if f.matches(day) {
		if at, ok := f.nextSecond(second); ok {
			return day*perDay + int64(at), true
		}
	}
	day, ok := f.nextDay(day + 1)
	at, found := f.nextSecond(0)
	return day*perDay + int64(at), ok && found
}

// lastWall returns the last matching wall time at or before a given one.
func (f fields) lastWall(wall int64) (int64, bool) {
	day, second := divide(wall)
	if f.matches(day) {
		if at, ok := f.lastSecond(second); ok {
			return day*perDay + int64(at), true
		}
	}
	day, ok := f.lastDay(day - 1)
	at, found := f.lastSecond(perDay - 1)
	return day*perDay + int64(at), ok && found
}

// divide splits a wall time into the day, counted from 1970-01-01, and the second of that day.
func divide(wall int64) (day int64, second int) {
	second = int((wall%perDay + perDay) % perDay)
	return (wall - int64(second)) / perDay, second
}

// nextSecond returns a day's first matching second at or after a given one.
func (f fields) nextSecond(from int) (int, bool) {
	hour, minute, second := from/perHour, from/perMinute%60, from%60
	if has(f.hour, hour) {
		if has(f.minute, minute) {
			if s, ok := atLeast(f.second, second); ok {
				return hour*perHour + minute*perMinute + s, true
			}
		}
		if m, ok := atLeast(f.minute, minute+1); ok {
			return hour*perHour + m*perMinute + bits.TrailingZeros64(f.second), true
		}
	}
	h, ok := atLeast(f.hour, hour+1)
	return h*perHour + bits.TrailingZeros64(f.minute)*perMinute + bits.TrailingZeros64(f.second), ok
}

// lastSecond returns a day's last matching second at or before a given one.
func (f fields) lastSecond(from int) (int, bool) {
	hour, minute, second := from/perHour, from/perMinute%60, from%60
	if has(f.hour, hour) {
		if has(f.minute, minute) {
			if s, ok := atMost(f.second, second); ok {
				return hour*perHour + minute*perMinute + s, true
			}
		}
		if m, ok := atMost(f.minute, minute-1); ok {
			return hour*perHour + m*perMinute + bits.Len64(f.second) - 1, true
		}
	}
	h, ok := atMost(f.hour, hour-1)
	return h*perHour + (bits.Len64(f.minute)-1)*perMinute + bits.Len64(f.second) - 1, ok
}

// nextDay returns the first matching day at or after a given one.
func (f fields) nextDay(from int64) (int64, bool) {
	year, month, day := date(from)
	for range rarest + 1 {
		if has(f.month, int(month)) {
			days, first := f.days(year, month)
			if d, ok := atLeast(days, day); ok {
				return first + int64(d-1), true
			}
		}
		day = 1
		if month++; month > time.December {
			year, month = year+1, time.January
		}
	}
	return 0, false
}

// lastDay returns the last matching day at or before a given one.
func (f fields) lastDay(from int64) (int64, bool) {
	year, month, day := date(from)
	for range rarest + 1 {
		if has(f.month, int(month)) {
			days, first := f.days(year, month)
			if d, ok := atMost(days, day); ok {
				return first + int64(d-1), true
			}
		}
		day = 31
		if month--; month < time.January {
			year, month = year-1, time.December
		}
	}
	return 0, false
}

// matches reports whether a day's date matches.
func (f fields) matches(day int64) bool {
	year, month, d := date(day)
	if !has(f.month, int(month)) {
		return false
	}
	days, _ := f.days(year, month)
	return has(days, d)
}

// days returns the set of a month's matching days, whether or not the month itself matches, and its first day's number.
func (f fields) days(year int, month time.Month) (days uint64, first int64) {
	first, _ = divide(time.Date(year, month, 1, 0, 0, 0, 0, time.UTC).Unix())
	begins := ((first+4)%7 + 7) % 7 // 1970-01-01 was a Thursday
	week := (f.weekday | f.weekday<<7) >> begins & (1<<7 - 1)
	byWeekday := (week | week<<7 | week<<14 | week<<21 | week<<28) << 1
	if f.either {
		return (f.day | byWeekday) & daysOf(year, month), first
	}
	return f.day & byWeekday & daysOf(year, month), first
}

// daysOf returns the set of a month's days.
func daysOf(year int, month time.Month) uint64 {
	last := time.Date(year, month+1, 0, 0, 0, 0, 0, time.UTC).Day()
	return 1<<(last+1) - 2
}

func date(day int64) (int, time.Month, int) { return time.Unix(day*perDay, 0).UTC().Date() }

func has(set uint64, value int) bool { return set>>value&1 == 1 }

// atLeast returns a set's least value at or above a bound.
func atLeast(set uint64, bound int) (int, bool) {
	set = set >> bound << bound
	return bits.TrailingZeros64(set), set != 0
}

// atMost returns a set's greatest value at or below a bound.
func atMost(set uint64, bound int) (int, bool) {
	set &= 1<<(bound+1) - 1
	return bits.Len64(set) - 1, set != 0
}
