#include "simulation/ranks.hpp"

#include <algorithm>
#include <chrono>
#include <cstring>

#include "base/text.hpp"

namespace simulation {

using muonrt::cat;
using muonrt::Error;
using muonrt::ReceiveFrom;
using muonrt::SendTo;
using muonrt::Transport;

namespace {

constexpr unsigned char kPoison = 0xff;
/// An operation may return this long after its timeout, because it waits for the scheduler.
constexpr int64_t kGrace = 100 * kMillisecond;

/// Fills memory with the data that rank `from` sends to rank `to` in a step.
void fill(void* memory, int64_t bytes, const Step& s, int from, int to) {
  Random random(s.seed ^ (static_cast<uint64_t>(from * 64 + to + 1) << 40));
  auto* out = static_cast<unsigned char*>(memory);
  for (; bytes >= 8; bytes -= 8, out += 8) {
    const uint64_t word = random.next();
    std::memcpy(out, &word, 8);
  }
  const uint64_t word = random.next();
  std::memcpy(out, &word, static_cast<size_t>(bytes));
}

bool is_filled(const void* memory, int64_t bytes, const Step& s, int from, int to) {
  std::vector<unsigned char> expected(static_cast<size_t>(bytes));
  fill(expected.data(), bytes, s, from, to);
  return bytes == 0 || std::memcmp(memory, expected.data(), expected.size()) == 0;
}

int64_t small_number(const Step& s, int rank, int64_t i) {
  Random random(s.seed + static_cast<uint64_t>(rank * 1000 + i));
  return random.between(-1'000'000, 1'000'000);
}

}  // namespace

void RankRun::require(bool good, const std::string& problem) const {
  if (!good) Scheduler::get().fail(cat("rank ", rank_, ": ", problem));
}

RankRun::Buffer& RankRun::fresh(std::vector<Buffer>& used, int64_t bytes, const std::string& what) {
  used.push_back({std::vector<unsigned char>(static_cast<size_t>(bytes), kPoison), what});
  return used.back();
}

/// Fills the buffers of an operation that has returned with a pattern, because no thread may use
/// them any more. If a thread sends from a buffer too late, the peer receives wrong data. If a
/// thread writes too late, check_buffers() finds the change.
void RankRun::keep(std::vector<Buffer>& used) {
  for (Buffer& b : used) {
    b.pattern = static_cast<unsigned char>(0xa0 + rank_);
    std::fill(b.memory.begin(), b.memory.end(), b.pattern);
    kept_.push_back(std::move(b));
  }
}

void RankRun::check_buffers() const {
  for (const Buffer& b : kept_) {
    const bool intact = std::all_of(b.memory.begin(), b.memory.end(),
                                    [&](unsigned char c) { return c == b.pattern; });
    require(intact, cat(b.what, " was written after its operation had returned"));
  }
}

void RankRun::run(const std::function<std::unique_ptr<Transport>()>& connect) {
  Scheduler& s = Scheduler::get();
  comms_.resize(static_cast<size_t>(plan_.comms));
  s.sleep_until(s.now() + plan_.first_pause[static_cast<size_t>(rank_)]);
  std::vector<std::thread> none;
  meet_faults(0, -1, none);
  const int64_t began = s.now();
  try {
    comms_[0].transport = connect();
    comms_[0].transport->set_timeout_ms(plan_.timeout_ms);
    s.log("connected");
  } catch (const Error& error) {
    s.log("does not connect: ", error.message());
    auto allowed = plan_.allowed(0);
    if (plan_.has_network_fault() || plan_.leaves(0)) allowed.insert(Status::kTimeout);
    require(allowed.contains(error.status()),
            cat("creation returned ", muonrt::status_name(error.status()), ": ", error.message()));
    require(s.now() - began <= plan_.connect_timeout_ms() * kMillisecond + kGrace + 5 * kSecond,
            cat("creation ended ", (s.now() - began) / kMillisecond, " ms after its begin"));
    return;
  }
  bool leaves = false;
  run_lane(0, leaves);
  if (!leaves) s.log("done");
  if (plan_.lingers) s.sleep_until(s.now() + 1000 * kSecond);
  // The communicators are destroyed in random order.
  std::vector<size_t> order(comms_.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  for (size_t i = order.size(); i > 1; --i)
    std::swap(order[i - 1], order[static_cast<size_t>(s.random().below(static_cast<int64_t>(i)))]);
  for (const size_t i : order) comms_[i].transport.reset();
  s.log("has destroyed its communicators");
}

void RankRun::run_lane(int lane, bool& leaves) {
  std::thread other;
  bool other_leaves = false;
  std::vector<std::thread> aborts;
  const auto& steps = plan_.lanes[static_cast<size_t>(lane)];
  for (size_t i = 0; i < steps.size() && !leaves; ++i) {
    leaves = meet_faults(lane, static_cast<int>(i), aborts);
    if (!leaves) run_step(lane, static_cast<int>(i));
    if (lane == 0 && i == 0 && plan_.lanes.size() > 1)
      other = std::thread([&] { run_lane(1, other_leaves); });
  }
  for (std::thread& t : aborts) t.join();
  for (int comm = 0; leaves && comm < plan_.comms; ++comm) {
    if (plan_.lane_of(comm) == lane) comms_[static_cast<size_t>(comm)].transport.reset();
  }
  if (other.joinable()) other.join();
}

/// Applies the faults of this rank at a step. Returns true if the rank leaves.
bool RankRun::meet_faults(int lane, int step, std::vector<std::thread>& aborts) {
  Scheduler& s = Scheduler::get();
  bool leaves = false;
  for (const Fault& f : plan_.faults) {
    if (f.rank != rank_ || f.lane != lane || f.step != step) continue;
    s.log("begins fault ", name_of(f.kind));
    if (f.kind == Fault::Kind::kLeave) leaves = true;
    if (f.kind == Fault::Kind::kPause) s.sleep_until(s.now() + f.delay);
    if (f.kind >= Fault::Kind::kKill) strike_(f);
    if (f.kind != Fault::Kind::kAbort && f.kind != Fault::Kind::kAbortAll) continue;
    const int comm = plan_.lanes[static_cast<size_t>(lane)][static_cast<size_t>(step)].comm;
    Transport* const t = comms_[static_cast<size_t>(comm)].transport.get();
    if (!t) continue;
    aborts.emplace_back([this, &s, f, t] {
      s.sleep_until(s.now() + f.delay);
      s.log("aborts");
      const std::string message = cat("rank ", rank_, " aborts");
      if (f.kind == Fault::Kind::kAbortAll)
        t->abort_with_duplicates(f.status, message);
      else
        t->abort(f.status, message);
      const auto error = t->error();
      require(error.has_value(), "no error after an abort");
    });
  }
  return leaves;
}

void RankRun::run_step(int lane, int number) {
  Scheduler& s = Scheduler::get();
  const Step& step = plan_.lanes[static_cast<size_t>(lane)][static_cast<size_t>(number)];
  Comm& comm = comms_[static_cast<size_t>(step.comm)];
  if (!comm.transport) return;  // this rank has not created the communicator
  const std::string where = cat("lane ", lane, " step ", number, " (", muonrt::name_of(step.kind),
                                " on communicator ", step.comm, ")");
  const Fault* fault = nullptr;
  for (const Fault& f : plan_.faults) {
    const bool here = f.rank == rank_ && f.lane == lane && f.step == number;
    if (here && (f.kind == Fault::Kind::kWrongSize || f.kind == Fault::Kind::kBadArgument))
      fault = &f;
  }
  std::vector<Buffer> used;
  used.reserve(64);
  const int64_t began = s.now();
  s.log("begins ", where);
  try {
    operate(*comm.transport, step, fault, used);
    s.log("ends ", where);
    require(!comm.first, cat(where, ": succeeded after an error"));
  } catch (const Error& error) {
    s.log("fails in ", where, ": ", muonrt::status_name(error.status()), ": ", error.message());
    check_error(comm, step, where, error, began);
  }
  keep(used);
  const int64_t late = s.now() - began - plan_.timeout_ms * kMillisecond;
  require(late <= kGrace, cat(where, " ended ", late / kMillisecond, " ms after its timeout"));
}

void RankRun::check_error(Comm& comm, const Step& step, const std::string& where,
                          const Error& error, int64_t began) {
  const auto text = [](const Error& e) {
    return cat(muonrt::status_name(e.status()), ", rank ", e.rank(), ": ", e.message());
  };
  require(plan_.allowed(step.comm).contains(error.status()),
          cat(where, ": unexpected error ", text(error)));
  const auto kept = comm.transport->error();
  require(
      kept && kept->status() == error.status() && kept->rank() == error.rank() &&
          error.message().starts_with(kept->message()),
      cat(where, ": returned ", text(error), "\n  but error() is ", kept ? text(*kept) : "empty"));
  if (!comm.first) {
    comm.first = *kept;
    return;
  }
  require(comm.first->status() == kept->status() && comm.first->message() == kept->message(),
          cat(where, ": returned ", text(error), "\n  after ", text(*comm.first)));
  const int64_t took = Scheduler::get().now() - began;
  require(took <= kGrace, cat(where, " took ", took / kMillisecond, " ms after an error"));
}

void RankRun::operate(Transport& t, const Step& s, const Fault* fault, std::vector<Buffer>& used) {
  const int size = plan_.size;
  const auto n = static_cast<size_t>(s.n);
  switch (s.kind) {
    case OperationKind::kExchange:
      return exchange(t, s, fault, used);
    case OperationKind::kAllgather: {
      auto& mine = fresh(used, s.n, "an input of allgather").memory;
      auto& all = fresh(used, s.n * size, "an output of allgather").memory;
      fill(mine.data(), s.n, s, rank_, 0);
      t.allgather(mine.data(), all.data(), s.n);
      for (int from = 0; from < size; ++from)
        require(is_filled(all.data() + from * s.n, s.n, s, from, 0),
                cat("allgather: wrong bytes of rank ", from));
      return;
    }
    case OperationKind::kReduceMax: {
      std::vector<float> in(n), out(n, -1.0f);
      for (size_t i = 0; i < n; ++i)
        in[i] = static_cast<float>(small_number(s, rank_, static_cast<int64_t>(i)));
      t.reduce_max(in.data(), out.data(), s.n);
      for (size_t i = 0; i < n; ++i) {
        int64_t most = small_number(s, 0, static_cast<int64_t>(i));
        for (int r = 1; r < size; ++r)
          most = std::max(most, small_number(s, r, static_cast<int64_t>(i)));
        require(out[i] == static_cast<float>(most), "reduce_max: wrong value");
      }
      return;
    }
    case OperationKind::kReduceSum: {
      std::vector<int64_t> in(n), out(n, -1);
      for (size_t i = 0; i < n; ++i) in[i] = small_number(s, rank_, static_cast<int64_t>(i));
      t.reduce_sum(in.data(), out.data(), s.n);
      for (size_t i = 0; i < n; ++i) {
        int64_t sum = 0;
        for (int r = 0; r < size; ++r) sum += small_number(s, r, static_cast<int64_t>(i));
        require(out[i] == sum, "reduce_sum: wrong value");
      }
      return;
    }
    case OperationKind::kDuplicate:
      comms_[static_cast<size_t>(s.made)].transport = t.duplicate();
      return;
  }
}

void RankRun::exchange(Transport& t, const Step& s, const Fault* fault, std::vector<Buffer>& used) {
  const int size = plan_.size;
  std::vector<SendTo> sends;
  std::vector<ReceiveFrom> receives;
  const bool wrong = fault && fault->kind == Fault::Kind::kWrongSize;
  for (int step = 0; step < size; ++step) {
    const int to = (rank_ + step) % size, from = (rank_ - step + size) % size;
    if (int64_t bytes = s.bytes(rank_, to)) {
      bytes += wrong && to != rank_ ? 1 : 0;
      auto& out = fresh(used, bytes, cat("a message to rank ", to)).memory;
      fill(out.data(), bytes, s, rank_, to);
      sends.push_back({to, out.data(), bytes});
    }
    if (const int64_t bytes = s.bytes(from, rank_)) {
      auto& in = fresh(used, bytes, cat("a message from rank ", from)).memory;
      receives.push_back({from, in.data(), bytes});
    }
  }
  if (fault && fault->kind == Fault::Kind::kBadArgument) receives.push_back({size, used.data(), 1});
  t.exchange(sends, receives);
  for (const ReceiveFrom& r : receives)
    require(is_filled(r.data, r.bytes, s, r.peer, rank_),
            cat("exchange: wrong bytes of rank ", r.peer));
  for (const SendTo& m : sends)
    require(is_filled(m.data, m.bytes, s, rank_, m.peer),
            cat("exchange: changed a message to rank ", m.peer));
}

}  // namespace simulation
