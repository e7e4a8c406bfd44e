#include "optimizer/step_outcome.hpp"

#include <catch2/catch.hpp>
#include <random>
#include <vector>

// Tests how the state of a rank at the end of a step determines the outcome, without threads or
// devices.

namespace muonrt {

namespace {

constexpr int64_t kWorld = 3, kFingerprint = 1000003;

/// Returns the vote sum if `consenting` ranks accept, `nonfinite` ranks have found a non-finite
/// value, and `failing` ranks have an error. All ranks have the same fingerprint and factor.
Vote sum_of(int64_t consenting, int64_t nonfinite, int64_t failing) {
  Vote sum;
  sum.consent = consenting;
  sum.nonfinite = nonfinite;
  sum.fingerprint = (consenting + nonfinite + failing) * kFingerprint;
  return sum;
}
const Vote kAll = sum_of(3, 0, 0), kSkip = sum_of(2, 1, 0), kNo = sum_of(2, 0, 1);

StepEndState ended(const Vote& vote_sum) {
  return {.vote_sum = vote_sum,
          .confirm_sum = rejecting_vote_sum(),
          .world = kWorld,
          .fingerprint = kFingerprint,
          .vote_sent = true,
          .vote_returned = true};
}
StepEndState eager(const Vote& vote_sum, const Vote& confirm_sum) {
  StepEndState end = ended(vote_sum);
  end.confirm_sum = confirm_sum;
  end.commit = CommitMode::kEager;
  return end;
}
StepEndState failed(StepEndState end) {
  end.failed = true;
  return end;
}
StepEndState comm_failed(StepEndState end) {
  end.comm_failed = true;
  return end;
}
StepEndState before(StepEndState end, bool sent) {
  end.vote_sum = rejecting_vote_sum();
  end.vote_sent = sent;
  end.vote_returned = false;
  return end;
}

/// Returns the vote of one rank by the rules of cast_vote().
Vote cast(bool ok, bool finite, int64_t fingerprint, int64_t factor) {
  Vote vote;
  vote.consent = ok && finite;
  vote.nonfinite = ok && !finite;
  vote.fingerprint = fingerprint;
  vote.set_factor(factor);
  return vote;
}
void add(Vote& sum, const Vote& vote) {
  const auto wrapping_add = [](int64_t& to, int64_t more) {
    to = static_cast<int64_t>(static_cast<uint64_t>(to) + static_cast<uint64_t>(more));
  };
  wrapping_add(sum.consent, vote.consent);
  wrapping_add(sum.nonfinite, vote.nonfinite);
  wrapping_add(sum.fingerprint, vote.fingerprint);
  wrapping_add(sum.factor, vote.factor);
  wrapping_add(sum.lower_square, vote.lower_square);
  wrapping_add(sum.upper_square, vote.upper_square);
}

}  // namespace

TEST_CASE("step outcome: every outcome of a step", "[unit][optimizer]") {
  struct Row {
    const char* what;
    StepEndState end;
    StepOutcome expected;
  };
  Vote other_fingerprint = kAll, other_factor = kAll;
  other_fingerprint.fingerprint += 1;
  other_factor.lower_square += 1;
  Vote other_gradients = kAll, other_weights = kAll;
  other_gradients.gradient_replicas = -1;
  other_weights.weight_replicas = 1;
  Vote skip_other_fingerprint = kSkip;
  skip_other_fingerprint.fingerprint += 1;
  Vote skip_other_gradients = kSkip;
  skip_other_gradients.gradient_replicas = 1;
  using enum StepOutcome;
  const std::vector<Row> rows = {
      {"all consent", ended(kAll), kCommitted},
      {"one found a non-finite value", ended(kSkip), kSkipped},
      {"all found one", ended(sum_of(0, 3, 0)), kSkipped},
      {"one has an error", ended(kNo), kRejected},
      {"one has an error, another found a value", ended(sum_of(1, 1, 1)), kRejected},
      {"another fingerprint on one rank", ended(other_fingerprint), kRejected},
      {"another factor on one rank", ended(other_factor), kRejected},
      {"gradients of replicas differ", ended(other_gradients), kRejected},
      {"weights of replicas differ", ended(other_weights), kRejected},
      {"a non-finite value, and another fingerprint", ended(skip_other_fingerprint), kRejected},
      {"a non-finite value, and gradients that differ", ended(skip_other_gradients), kSkipped},
      {"the vote sum has not arrived", ended(rejecting_vote_sum()), kRejected},
      {"the sum of too few votes", ended(sum_of(2, 0, 0)), kRejected},

      {"eager: both votes pass", eager(kAll, kAll), kCommitted},
      {"eager: an update was not finite", eager(kAll, kSkip), kTorn},
      {"eager: the confirmation has not arrived", eager(kAll, rejecting_vote_sum()), kTorn},
      {"eager: a gradient was not finite", eager(kSkip, rejecting_vote_sum()), kSkipped},
      {"eager: one has an error", eager(kNo, rejecting_vote_sum()), kRejected},

      {"streams fail before the vote", failed(before(ended(kAll), false)), kFailed},
      {"streams fail during the vote", failed(before(ended(kAll), true)), kUndecided},
      {"a stream continues after an aborted vote", failed(ended(rejecting_vote_sum())), kUndecided},
      {"streams fail after a vote that passed", failed(ended(kAll)), kTorn},
      {"explaining a skip fails", failed(ended(kSkip)), kFailed},
      {"explaining a rejection fails", failed(ended(kNo)), kFailed},
      {"eager: streams fail between the votes", failed(eager(kAll, rejecting_vote_sum())), kTorn},

      {"the communicator ends after the vote", comm_failed(ended(kAll)), kCommitted},
      {"the communicator ends before the vote", comm_failed(before(ended(kAll), false)), kFailed},
      {"the communicator ends during the vote", comm_failed(before(ended(kAll), true)), kUndecided},
      {"the communicator ends after a skip", comm_failed(ended(kSkip)), kFailed},
      {"eager: it ends between the votes", comm_failed(eager(kAll, rejecting_vote_sum())), kTorn},
      {"eager: it ends after both", comm_failed(eager(kAll, kAll)), kCommitted},
  };
  for (const Row& row : rows) {
    INFO(row.what);
    CHECK(static_cast<int>(determine_outcome(row.end)) == static_cast<int>(row.expected));
  }
}

TEST_CASE("step outcome: vote sums pass only if all factors are equal", "[unit][optimizer]") {
  const auto sum_of = [](const std::vector<uint32_t>& factors) {
    Vote sum;
    for (const uint32_t f : factors) add(sum, cast(true, true, 77, f));
    return sum;
  };
  for (const int64_t ranks : {1, 2, 3, 64, 4096}) {
    for (const uint32_t bits : {0u, 1u, 0x3f800000u, 0x7fffffffu, 0xffffffffu}) {
      std::vector<uint32_t> factors(static_cast<size_t>(ranks), bits);
      CHECK(vote_passes(sum_of(factors), ranks, 77));
      CHECK_FALSE(vote_passes(sum_of(factors), ranks, 78));
      for (const uint32_t change : {1u, 0x800000u, 0x80000000u}) {
        if (ranks == 1) continue;
        factors.back() = bits ^ change;
        CHECK_FALSE(vote_passes(sum_of(factors), ranks, 77));
      }
    }
  }
  // Two groups of ranks have different factors. If the vote added 64-bit squares of the factors,
  // the sum could wrap around to the value for equal factors.
  for (const int64_t ranks : {2, 4, 64, 128, 512, 1024, 4096, 65'536})
    for (int64_t others = 1; others < ranks; others *= 2)
      for (const uint32_t other : {0x3f800001u, 0x40000000u, 0x3f000000u, 0x37800000u, 0xbf800000u,
                                   0xffffffffu, 0u, 0x3f810000u}) {
        std::vector<uint32_t> factors(static_cast<size_t>(ranks), 0x3f800000u);
        std::fill_n(factors.begin(), others, other);
        if (vote_passes(sum_of(factors), ranks, 77)) FAIL(ranks << ' ' << others << ' ' << other);
      }
  CHECK(vote_passes(sum_of(std::vector<uint32_t>(65'536, 0xffffffffu)), 65'536, 77));
}

TEST_CASE("step outcome: ranks whose streams end without an error get the same outcome",
          "[unit][optimizer][property]") {
  std::mt19937_64 random(20261125);
  const auto one_in = [&](int n) { return random() % static_cast<uint64_t>(n) == 0; };
  int counts[3] = {};
  for (int round = 0; round < 20000; ++round) {
    const auto world = static_cast<int64_t>(1 + random() % 6);
    const bool is_eager = one_in(2);
    const auto common = static_cast<int64_t>(random());
    std::vector<int64_t> fingerprints;
    Vote first, second;
    bool all_ok = true, all_finite = true, same = true;
    for (int64_t r = 0; r < world; ++r) {
      const bool ok = !one_in(8), finite = !one_in(6), odd_factor = one_in(12);
      const int64_t fingerprint = one_in(12) ? static_cast<int64_t>(random()) : common;
      fingerprints.push_back(fingerprint);
      all_ok = all_ok && ok;
      all_finite = all_finite && finite;
      same = same && fingerprint == fingerprints[0] && (odd_factor ? world == 1 : true);
      add(first, cast(ok, finite, fingerprint, odd_factor ? 7 : 0));
      add(second, cast(true, true, fingerprint, odd_factor ? 7 : 0));
    }
    std::vector<StepOutcome> outcomes;
    for (const int64_t fingerprint : fingerprints) {
      StepEndState end = {.vote_sum = first,
                          .confirm_sum = is_eager ? second : rejecting_vote_sum(),
                          .world = world,
                          .fingerprint = fingerprint,
                          .commit = is_eager ? CommitMode::kEager : CommitMode::kAtomic,
                          .vote_sent = true,
                          .vote_returned = true};
      outcomes.push_back(determine_outcome(end));
    }
    for (const StepOutcome outcome : outcomes) REQUIRE(outcome == outcomes[0]);
    const bool commits = all_ok && all_finite && same;
    if (commits) CHECK(outcomes[0] == StepOutcome::kCommitted);
    if (!all_ok) CHECK(outcomes[0] == StepOutcome::kRejected);
    ++counts[static_cast<int>(outcomes[0])];
  }
  for (const int times : counts) CHECK(times > 100);
}

}  // namespace muonrt
