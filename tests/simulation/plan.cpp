#include "simulation/plan.hpp"

#include <algorithm>

namespace simulation {

using muonrt::cat;

namespace {

constexpr Status kAbortStatuses[] = {Status::kAborted, Status::kDevice, Status::kInternal,
                                     Status::kInvalidState};

bool about_network(Fault::Kind kind) { return kind >= Fault::Kind::kKill; }

}  // namespace

const char* name_of(Fault::Kind kind) {
  constexpr const char* kNames[] = {
      "abort", "abort with duplicates", "wrong size", "bad argument", "leave", "pause",
      "kill",  "machine dies",          "disconnect", "partition",    "flip"};
  return kNames[static_cast<int>(kind)];
}

int64_t Step::bytes(int from, int to) const {
  Random random(seed + static_cast<uint64_t>(from * 64 + to));
  if (random.below(4) < static_cast<int64_t>(seed % 4)) return 0;
  return random.any_size(n);
}

Plan::Plan(uint64_t world, bool over_tcp) : seed(world), tcp(over_tcp) {
  Random random(world * 2 + (over_tcp ? 1 : 0));
  size = static_cast<int>(random.between(random.one_in(10) ? 1 : 2, random.one_in(3) ? 6 : 4));
  timeout_ms = random.one_in(4) ? random.between(1, 2000) : 600'000;
  weather.most_latency = random.any_size(random.one_in(8) ? kSecond : 5 * kMillisecond);
  weather.least_latency = random.below(weather.most_latency + 1);
  weather.window = Weather::kLeastWindow + random.any_size(random.one_in(3) ? 4096 : 1 << 21);
  weather.short_transfers = random.one_in(2);
  if (random.one_in(4)) weather.unauthenticated = static_cast<int>(random.between(1, 3));
  for (int rank = 0; rank < size; ++rank)
    first_pause.push_back(random.one_in(3) ? random.any_size(3 * kSecond) : 0);
  draw_lanes(random);
  draw_faults(random);
  lingers = random.one_in(2);
  in_folder = tcp && random.one_in(4);
}

void Plan::draw_lanes(Random& random) {
  made_at_ = {{}};
  const int count = random.one_in(3) ? 2 : 1;
  // The lanes that use each communicator. The second lane begins with a duplicate of the first
  // communicator.
  std::vector<std::vector<int>> users(2);
  users[0] = {0};
  lanes.resize(static_cast<size_t>(count));
  if (count == 2) {
    lanes[0].push_back({OperationKind::kDuplicate, 0, 1, 0, random.next()});
    made_at_.push_back({0, 0, 0});
    users[1] = {comms++};
  }
  for (int lane = 0; lane < count; ++lane) {
    auto& steps = lanes[static_cast<size_t>(lane)];
    auto& its = users[static_cast<size_t>(lane)];
    const int64_t length = random.between(1, 10);
    for (int64_t i = 0; i < length; ++i) {
      Step step{static_cast<OperationKind>(random.below(muonrt::kOperationKinds)),
                random.one_of(its), -1, 0, random.next()};
      const bool large = tcp && random.one_in(8);
      step.n = random.any_size(large ? std::min<int64_t>(3 << 20, 32 * weather.window) : 3000);
      if (step.kind == OperationKind::kExchange && step.n == 0) step.n = 1;
      if (step.kind == OperationKind::kReduceMax || step.kind == OperationKind::kReduceSum)
        step.n /= 8;
      if (step.kind == OperationKind::kAllgather) step.n /= 2;
      if (step.kind == OperationKind::kDuplicate) {
        step.made = comms++;
        made_at_.push_back({lane, static_cast<int>(steps.size()), step.comm});
        its.push_back(step.made);
      }
      steps.push_back(step);
    }
  }
}

void Plan::draw_faults(Random& random) {
  const int64_t count = random.one_in(3) ? 0 : random.one_in(3) ? random.between(2, 4) : 1;
  for (int64_t i = 0; i < count; ++i) {
    Fault f;
    f.kind = static_cast<Fault::Kind>(random.below(tcp ? 11 : 6));
    f.rank = static_cast<int>(random.below(size));
    f.lane = static_cast<int>(random.below(static_cast<int64_t>(lanes.size())));
    f.step = static_cast<int>(
        random.below(static_cast<int64_t>(lanes[static_cast<size_t>(f.lane)].size())));
    if (about_network(f.kind) && random.one_in(5)) f.step = f.lane = -1;
    if (f.step < 0) f.lane = 0;
    f.delay = random.any_size(random.one_in(4) ? 5 * kSecond : 10 * kMillisecond);
    f.calls = random.any_size(2000);
    f.status = kAbortStatuses[random.below(4)];
    faults.push_back(f);
  }
}

bool Plan::leaves(int rank) const {
  return std::any_of(faults.begin(), faults.end(), [&](const Fault& f) {
    return f.kind == Fault::Kind::kLeave && f.rank == rank;
  });
}

bool Plan::has_network_fault() const {
  return std::any_of(faults.begin(), faults.end(), [&](const Fault& f) {
    return about_network(f.kind) && f.kind != Fault::Kind::kPartition;
  });
}

/// The fault ends a communicator. Returns whether the error of that communicator can reach `comm`.
bool Plan::is_affected(int comm, const Fault& fault) const {
  const int ended = lanes[static_cast<size_t>(fault.lane)][static_cast<size_t>(fault.step)].comm;
  for (int at = comm; at >= 0; at = made_at_[static_cast<size_t>(at)].parent) {
    if (at == ended) return true;
    // The creation of `at` fails on some ranks if the original communicator ends before all ranks
    // have left the creation.
    const Place& place = made_at_[static_cast<size_t>(at)];
    if (fault.kind == Fault::Kind::kAbortAll) continue;
    if (place.parent < 0 || place.lane != fault.lane) continue;
    const auto& steps = lanes[static_cast<size_t>(place.lane)];
    bool met = false;
    for (int s = place.step + 1; s < fault.step; ++s) met |= steps[static_cast<size_t>(s)].meets();
    if (met) return false;
  }
  return false;
}

std::set<Status> Plan::allowed(int comm) const {
  std::set<Status> out;
  if (is_short()) out.insert(Status::kTimeout);
  for (const Fault& f : faults) {
    // A rank that ends for a different reason waits up to one second until its peers have received
    // its error.
    if (tcp && f.kind == Fault::Kind::kPartition && f.delay > kSecond &&
        (faults.size() > 1 || is_short()))
      out.insert(Status::kComm);
    if (f.kind == Fault::Kind::kPause || f.kind == Fault::Kind::kPartition) continue;
    if (f.kind == Fault::Kind::kLeave || about_network(f.kind)) {
      out.insert(Status::kComm);
      if (f.kind == Fault::Kind::kMachineDies || f.step < 0) out.insert(Status::kTimeout);
      continue;
    }
    if (!is_affected(comm, f)) continue;
    // Rank 0 may end before it has forwarded the error.
    if (tcp && !lingers) out.insert(Status::kComm);
    if (f.kind == Fault::Kind::kAbort || f.kind == Fault::Kind::kAbortAll) out.insert(f.status);
    if (f.kind == Fault::Kind::kBadArgument) out.insert(Status::kInvalidArgument);
    if (f.kind == Fault::Kind::kWrongSize) out.insert(Status::kMismatch);
  }
  return out;
}

std::string Plan::text() const {
  std::string out = cat(tcp ? "tcp" : "threads", ", ", size, " ranks, timeout ", timeout_ms, " ms");
  if (tcp)
    out +=
        cat(", latency ", weather.least_latency / 1000, " to ", weather.most_latency / 1000,
            " us, window ", weather.window, weather.short_transfers ? ", short transfers" : "",
            ", ", weather.unauthenticated, " without the secret", in_folder ? ", in a folder" : "");
  for (size_t lane = 0; lane < lanes.size(); ++lane) {
    out += cat("\n  lane ", lane, ":");
    for (const Step& s : lanes[lane])
      out += cat(" ", muonrt::name_of(s.kind), "(", s.comm, s.made < 0 ? "" : cat("->", s.made),
                 ", ", s.n, ")");
  }
  for (const Fault& f : faults)
    out += cat("\n  fault: ", name_of(f.kind), " on rank ", f.rank, ", lane ", f.lane, " step ",
               f.step, ", ", f.delay / 1000, " us, ", f.calls, " calls, ",
               muonrt::status_name(f.status));
  return out;
}

}  // namespace simulation
