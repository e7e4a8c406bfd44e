#pragma once

#include <algorithm>
#include <atomic>
#include <barrier>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "support/world.hpp"

namespace world {

/// Implements the callbacks assign, gather and redistribute for ranks that are threads. Each rank
/// publishes the addresses of its buffers, and the ranks copy element by element.
class Board {
 public:
  explicit Board(const Case& of) : case_(of), meet_(of.world) {
    for (int r = 0; r < of.world; ++r) mine_.push_back({this, r});
    locals_.resize(static_cast<size_t>(of.world));
    const auto mesh = std::make_shared<Mesh>(of.mesh, std::vector<std::string>{}, of.rank_array);
    for (const Param& p : of.params) layouts_.push_back(viewed(p, layout_of(p, mesh)));
    for (size_t p = 0; p < layouts_.size(); ++p)
      owners_.push_back({static_cast<int32_t>((static_cast<int>(p) * 5 + 2) % of.world)});
  }

  /// Sets the owners of a parameter: one rank for all of its matrices, or one rank for each matrix.
  void own(int64_t param, std::vector<int32_t> owners) {
    owners_[static_cast<size_t>(param)] = std::move(owners);
  }

  /// Sets the three callbacks in the settings of a rank. If own() was not called for a parameter,
  /// one rank owns all of its matrices. This default owner varies between parameters, and may hold
  /// no elements of the parameter.
  void serve(muonrt::OptimizerSettings& settings, int rank) {
    settings.exchange_callbacks = {&mine_[static_cast<size_t>(rank)], &gather, &redistribute};
    settings.assign_owner = [this](int64_t param, const auto&, const auto&, int32_t* owner) {
      std::ranges::copy(owners_[static_cast<size_t>(param)], owner);
      return 0;
    };
  }

  /// Makes call number `call` on a rank return `code`. Calls to gather and to redistribute are
  /// counted together, from 0.
  void fail(int rank, int64_t call, int code) {
    fail_rank_ = rank;
    fail_call_ = call;
    fail_code_ = code;
  }

  int64_t calls() const { return calls_; }  // number of calls on all ranks

  struct Call {
    bool gathers;
    int64_t param;
    int32_t owner;
    bool operator==(const Call&) const = default;
  };
  /// Returns the calls of a rank in the order in which they were made.
  const std::vector<Call>& calls_of(int rank) const { return mine_[static_cast<size_t>(rank)].log; }

 private:
  using Mesh = muonrt::Mesh;
  struct Mine {
    Board* board;
    int rank;
    int64_t calls = 0;
    std::vector<Call> log = {};
  };

  size_t width() const { return static_cast<size_t>(size_of(case_.settings.transport_dtype)); }

  /// Copies this rank's elements between its shard and the owner's matrices, which are stored
  /// without gaps.
  template <class Copy>
  void each(int64_t param, int32_t owner, int rank, Copy copy) const {
    const muonrt::Layout& layout = layouts_[static_cast<size_t>(param)];
    const std::vector<int32_t>& owners = owners_[static_cast<size_t>(param)];
    const int64_t matrix = layout.numel() / std::ssize(owners);
    std::vector<int64_t> first(owners.size());
    int64_t next = 0;
    for (size_t m = 0; m < owners.size(); ++m)
      first[m] = owners[m] == owner ? std::exchange(next, next + matrix) : -1;
    for_each_element(layout, rank, [&](int64_t element, int64_t at) {
      const int64_t begin = first[static_cast<size_t>(element / matrix)];
      if (begin < 0) return;
      copy(static_cast<size_t>(begin + element % matrix) * width(),
           static_cast<size_t>(at) * width());
    });
  }

  int count(Mine& mine, const Call& call) {
    ++calls_;
    mine.log.push_back(call);
    return mine.rank == fail_rank_ && mine.calls++ == fail_call_ ? fail_code_ : 0;
  }

  static int gather(void* state, int64_t param, int32_t owner, const void* local, void* full,
                    void*) {
    Mine& mine = *static_cast<Mine*>(state);
    Board& b = *mine.board;
    b.locals_[static_cast<size_t>(mine.rank)] = local;
    b.meet_.arrive_and_wait();
    if (mine.rank == owner) {
      for (int r = 0; r < b.case_.world; ++r) {
        b.each(param, owner, r, [&](size_t element, size_t at) {
          std::memcpy(static_cast<char*>(full) + element,
                      static_cast<const char*>(b.locals_[static_cast<size_t>(r)]) + at, b.width());
        });
      }
    } else if (full) {
      return 99;  // on ranks that are not the owner, `full` must be null
    }
    b.meet_.arrive_and_wait();
    return b.count(mine, {true, param, owner});
  }

  static int redistribute(void* state, int64_t param, int32_t owner, const void* full, void* local,
                          void*) {
    Mine& mine = *static_cast<Mine*>(state);
    Board& b = *mine.board;
    if (mine.rank == owner) b.full_ = full;
    b.meet_.arrive_and_wait();
    b.each(param, owner, mine.rank, [&](size_t element, size_t at) {
      std::memcpy(static_cast<char*>(local) + at, static_cast<const char*>(b.full_) + element,
                  b.width());
    });
    b.meet_.arrive_and_wait();
    return b.count(mine, {false, param, owner});
  }

  const Case& case_;
  std::vector<muonrt::Layout> layouts_;
  // for each parameter: one owner, or one for each matrix
  std::vector<std::vector<int32_t>> owners_;
  std::vector<Mine> mine_;
  std::vector<const void*> locals_;
  const void* full_ = nullptr;
  std::barrier<> meet_;
  std::atomic<int64_t> calls_{0};
  int fail_rank_ = -1, fail_code_ = 0;
  int64_t fail_call_ = -1;
};

}  // namespace world
