//! The prospects of a message that waits for its key.

use super::{FlowId, Flows, Starts};
use crate::why::{InFlow, Position};
use posthaste_wire::time::Timestamp;

impl Flows {
    /// Why the key lets nothing start now, and the consequence for this position in its lane; `None` if it lets
    /// deliveries start.
    pub(crate) fn outlook(&mut self, id: FlowId, position: Position, now: Timestamp) -> Option<InFlow> {
        self.admits(id, now).err()?;
        let key = self.keys.get(&id)?;
        let (flow, in_flight) = (&key.flow, key.in_flight);
        let is_held_up = flow.paused || flow.parallelism.is_some_and(|max| in_flight >= max);
        let nth = match position {
            Position::Nth(nth) => nth,
            Position::Beyond(count) => count + 1,
        };
        let opens_at =
            flow.rate.filter(|_| !is_held_up).map(|rate| key.starts.opens_for(nth, rate, flow.period_ms, now));
        Some(InFlow {
            key: flow.key.clone(),
            paused: flow.paused,
            parallelism: flow.parallelism,
            in_flight,
            rate: flow.rate,
            period_ms: flow.period_ms,
            position,
            opens_at,
        })
    }
}

impl Starts {
    /// When the rate allows the `nth` delivery of a lane to start, counted from 1, if all before it start as early as
    /// possible.
    fn opens_for(&self, nth: usize, rate: u32, period_ms: u64, now: Timestamp) -> Timestamp {
        let (before, rate) = ((nth as u64).saturating_sub(1), u64::from(rate.max(1)));
        // A full rate more means one period later.
        let (periods, rest) = (before / rate, before % rate);
        let mut excess = (u64::from(self.count) + rest + 1).saturating_sub(rate);
        let mut opens = now;
        for (time, count) in &self.list {
            if excess == 0 {
                break;
            }
            opens = opens.max(time.plus_millis(period_ms + 1));
            excess = excess.saturating_sub(u64::from(*count));
        }
        opens.plus_millis(periods * (period_ms + 1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::{FlowKey, FlowSpec};
    use posthaste_wire::id::TenantId;

    const T: Timestamp = Timestamp(1_780_315_200_000);
    const ID: FlowId = (TenantId(1), FlowKey(7));

    /// The estimate comes true: a lane of 17 messages at a used-up rate.
    #[test]
    fn each_of_a_line_starts_when_it_was_told() {
        for rate in [1, 2, 5] {
            let mut flows = Flows::default();
            flows.update(ID, &FlowSpec { key: "k".into(), parallelism: None, rate: Some(rate), period_ms: 1_000 }, T);
            for start in 0..rate {
                let at = T.plus_millis(u64::from(start) * 100);
                assert!(flows.admits(ID, at).is_ok());
                flows.start(ID, at);
            }
            let asked = T.plus_millis(450);
            let told: Vec<Timestamp> =
                (1..=17).map(|nth| flows.outlook(ID, Position::Nth(nth), asked).unwrap().opens_at.unwrap()).collect();
            let (mut now, mut started) = (asked, Vec::new());
            while started.len() < told.len() {
                if flows.admits(ID, now).is_ok() {
                    flows.start(ID, now);
                    started.push(now);
                } else {
                    now = now.plus_millis(1);
                }
            }
            assert_eq!(told, started, "{rate} per second");
        }
    }

    #[test]
    fn what_is_paused_or_full_says_no_time() {
        let mut flows = Flows::default();
        flows.update(ID, &FlowSpec { key: "k".into(), parallelism: Some(1), rate: Some(1), period_ms: 1_000 }, T);
        assert_eq!(flows.outlook(ID, Position::Nth(1), T), None, "it may start");
        flows.start(ID, T);
        let outlook = flows.outlook(ID, Position::Beyond(9), T).unwrap();
        assert_eq!((outlook.in_flight, outlook.parallelism, outlook.opens_at), (1, Some(1), None));
        flows.finish(ID, 0, T);
        let outlook = flows.outlook(ID, Position::Beyond(9), T).unwrap();
        assert_eq!(outlook.opens_at, Some(T.plus_millis(10 * 1_001)));
    }
}
