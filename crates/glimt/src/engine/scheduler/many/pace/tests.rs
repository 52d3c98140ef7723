//! Protects how long whoever waits has to wait: for a first token, and for the next one.

use super::*;
use crate::kernels::testing::Rng;

/// Steps of a device, until the times settle; the tokens of prompts in the last and the seconds that it took.
fn settled(pace: &mut Pace, decoded: usize, seconds: impl Fn(usize) -> f64) -> (usize, f64) {
    let mut last = (0, 0.0);
    for _ in 0..20 {
        let prompts = pace.room(decoded, decoded > 0, 512);
        let took = seconds(decoded + prompts);
        let step = Filled {
            tokens: decoded + prompts,
            prompts,
            is_run: false,
            is_full: true,
            at: Instant::now(),
        };
        pace.took(step, Duration::from_secs_f64(took));
        last = (prompts, took);
    }
    last
}

#[test]
fn a_step_beside_others_takes_its_time_and_no_more() {
    let mut pace = Pace::new();
    // A fast device, at the beginning of a prompt and deep in one.
    for per_token in [60e-6, 90e-6, 150e-6] {
        let seconds = |tokens: usize| 0.008 + per_token * tokens as f64;
        let (prompts, took) = settled(&mut pace, 16, seconds);
        assert!((0.026..0.034).contains(&took), "{prompts} in {took} s");
    }
    let (prompts, _) = settled(&mut pace, 0, |tokens| 0.008 + 90e-6 * tokens as f64);
    assert_eq!(prompts, 512, "alone it takes all");
}

#[test]
fn prompts_come_to_their_end_on_a_slow_device() {
    let mut pace = Pace::new();
    let decoding = Filled {
        tokens: 4,
        prompts: 0,
        is_run: false,
        is_full: false,
        at: Instant::now(),
    };
    for _ in 0..40 {
        pace.took(decoding, Duration::from_millis(200));
    }
    let (prompts, took) = settled(&mut pace, 4, |tokens| 0.1 + 0.002 * tokens as f64);
    assert!(prompts > 100 && took < 0.45, "{prompts} in {took} s");
    let (prompts, _) = settled(&mut pace, 0, |tokens| 0.02 * tokens as f64);
    assert_eq!(prompts, LEAST);
}

#[test]
fn a_step_that_was_held_up_and_one_of_few_tokens_say_little() {
    let mut pace = Pace::new();
    let seconds = |tokens: usize| 0.008 + 60e-6 * tokens as f64;
    let (prompts, _) = settled(&mut pace, 16, seconds);
    let step = |tokens, is_full| Filled {
        tokens,
        prompts: tokens,
        is_run: false,
        is_full,
        at: Instant::now(),
    };
    pace.took(step(3, false), Duration::from_millis(9));
    assert!(pace.room(16, true, 512).abs_diff(prompts) < prompts / 4);
    pace.took(step(300, true), Duration::from_secs(3));
    assert!(pace.room(16, true, 512) > prompts / 3);
    assert_eq!(
        pace.room(508, true, 512),
        4,
        "no more than there is room for"
    );
    assert_eq!(pace.room(512, true, 512), 0);
}

/// A request on a device that is only simulated. Times are seconds.
#[derive(Clone)]
struct User {
    comes: f64,
    /// Tokens of its prompt that no step has computed yet, and how many were.
    left: usize,
    done: usize,
    /// Tokens that steps in flight choose.
    drawn: usize,
    limit: usize,
    /// When each token came.
    told: Vec<f64>,
}

impl User {
    fn new(comes: f64, prompt: usize, limit: usize) -> Self {
        Self {
            comes,
            left: prompt,
            done: 0,
            drawn: 0,
            limit,
            told: vec![],
        }
    }

    fn is_there(&self, now: f64) -> bool {
        self.comes <= now && self.told.len() + self.drawn < self.limit
    }
}

/// A device that takes a time for each step, one for each token, and one for each token of a prompt and token before it.
struct Device {
    step: f64,
    token: f64,
    pair: f64,
}

impl Device {
    /// A device with this speed at prompts, in tokens per second, that decodes 32 tokens in `decoding` seconds. After as many tokens as
    /// `twice` tells, one of a prompt takes twice as long.
    fn new(speed: f64, decoding: f64, twice: f64) -> Self {
        let token = (512.0 / speed - decoding) / 480.0;
        Self {
            step: decoding - 32.0 * token,
            token,
            pair: token / twice,
        }
    }
}

/// A step in flight: its tokens, who is told one, when it was submitted and how long it takes.
struct Flown {
    filled: Filled,
    told: Vec<usize>,
    at: f64,
    takes: f64,
}

/// The next step for `users` at `now`, if there is something to compute, as the scheduler plans it.
fn fly(pace: &Pace, device: &Device, users: &mut [User], now: f64, zero: Instant) -> Option<Flown> {
    let at = |seconds: f64| zero + Duration::from_secs_f64(seconds);
    let there: Vec<usize> = (0..users.len())
        .filter(|i| users[*i].is_there(now))
        .collect();
    let (decoding, prompts): (Vec<usize>, Vec<usize>) =
        there.into_iter().partition(|i| users[*i].left == 0);
    let first = |user: &User| user.told.first().map(|first| at(*first));
    let beside = decoding.iter().any(|i| is_read(first(&users[*i]), at(now)));
    let room = pace.room(decoding.len(), beside, 512);
    let (mut told, mut taken, mut is_full, mut pairs) = (decoding, 0, false, 0);
    let decoded = told.len();
    for i in prompts {
        let user = &mut users[i];
        let count = user.left.min(room - taken);
        is_full |= count < user.left;
        pairs += count * user.done;
        user.left -= count;
        user.done += count;
        taken += count;
        if user.left == 0 {
            told.push(i);
        }
    }
    for i in &told {
        users[*i].drawn += 1;
    }
    let tokens = decoded + taken;
    let filled = Filled {
        tokens,
        prompts: taken,
        is_run: false,
        is_full,
        at: zero,
    };
    (tokens > 0).then_some(Flown {
        filled,
        told,
        at: now,
        takes: device.step + device.token * tokens as f64 + device.pair * pairs as f64,
    })
}

/// Answers all, two steps in flight.
fn serve(pace: &mut Pace, device: &Device, users: &mut [User]) {
    let zero = Instant::now();
    let (mut now, mut ended) = (0.0f64, 0.0f64);
    let mut flights = std::collections::VecDeque::new();
    loop {
        while flights.len() < 2
            && let Some(flown) = fly(pace, device, users, now, zero)
        {
            flights.push_back(flown);
        }
        let Some(flown) = flights.pop_front() else {
            let later = users
                .iter()
                .map(|user| user.comes)
                .filter(|comes| *comes > now);
            match later.reduce(f64::min) {
                Some(next) => now = next,
                None => return,
            }
            continue;
        };
        ended = ended.max(flown.at) + flown.takes;
        now = now.max(ended);
        pace.took(flown.filled, Duration::from_secs_f64(flown.takes));
        for i in flown.told {
            users[i].drawn -= 1;
            users[i].told.push(now);
        }
    }
}

/// Fast devices, whose steps without prompts take longer or less long.
fn devices(twice: f64) -> impl Iterator<Item = Device> {
    let speeds = [9000.0, 11_000.0, 15_000.0].into_iter();
    speeds.flat_map(move |speed| {
        [0.009, 0.012, 0.015].map(|decoding| Device::new(speed, decoding, twice))
    })
}

#[test]
fn first_tokens_of_many_who_come_at_once_come_soon() {
    let mut rng = Rng::fresh();
    for device in devices(1e9) {
        for within in [0.0, 0.003, 0.02] {
            let mut pace = Pace::new();
            // A long prompt is computed for somebody before them.
            serve(&mut pace, &device, &mut [User::new(0.0, 4000, 1)]);
            let comes = |rng: &mut Rng| within * rng.below(1000) as f64 / 1000.0;
            let users = (0..32).map(|_| User::new(comes(&mut rng), 17, 40));
            let mut users: Vec<User> = users.collect();
            users.sort_by(|a, b| a.comes.total_cmp(&b.comes));
            serve(&mut pace, &device, &mut users);
            let first = users.iter().map(|user| user.told[0] - user.comes);
            let last = first.fold(0.0, f64::max);
            assert!(last < 0.1, "the last first token after {last} s");
        }
    }
}

#[test]
fn a_long_prompt_holds_nobody_up() {
    for device in devices(8192.0) {
        for known in [false, true] {
            let mut pace = Pace::new();
            if known {
                serve(&mut pace, &device, &mut [User::new(0.0, 2000, 1)]);
            }
            let mut users = vec![User::new(0.0, 1, 400); 16];
            users.push(User::new(0.5, 8192, 3));
            serve(&mut pace, &device, &mut users);
            let (long, others) = users.split_last().expect("there are some");
            let pairs = others.iter().flat_map(|user| user.told.windows(2));
            let beside = pairs.filter(|pair| pair[1] > long.comes && pair[0] < long.told[0]);
            let gaps: Vec<f64> = beside.map(|pair| pair[1] - pair[0]).collect();
            let late = gaps.iter().filter(|gap| **gap >= 0.04).count();
            assert!(gaps.len() > 16 * 20 && late * 100 <= gaps.len(), "{gaps:?}");
            assert!(long.told[0] - long.comes < 3.0, "{:?}", long.told);
        }
    }
}

#[test]
fn parts_of_a_prompt_are_even_and_fit_the_pace() {
    let mut pace = Pace::new();
    let full = |tokens, is_run| Filled {
        tokens,
        prompts: tokens,
        is_run,
        is_full: true,
        at: Instant::now(),
    };
    assert_eq!(pace.part(1000, 2048), None, "nothing is known");
    // Half a millisecond for each token.
    pace.took(full(64, false), Duration::from_millis(32));
    assert_eq!(pace.part(1000, 2048), Some(250usize.next_multiple_of(32)));
    assert_eq!(pace.part(200, 2048), Some(200));
    assert_eq!(pace.part(128, 2048), None);
    // A tenth of that.
    pace.took(full(1250, true), Duration::from_micros(62_500));
    assert_eq!(pace.part(1000, 2048), Some(1000));
    assert_eq!(pace.part(4100, 2048), Some(1376));
    assert_eq!(pace.part(1000, 600), Some(512));
}
