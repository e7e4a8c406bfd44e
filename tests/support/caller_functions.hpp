#pragma once

#include <atomic>
#include <barrier>
#include <cstring>
#include <memory>
#include <vector>

#include "support/world.hpp"

namespace world {

/// The functions assign, gather and redistribute of a caller whose ranks are threads. The ranks
/// publish the addresses of their buffers and copy element by element.
class Board {
 public:
  explicit Board(const Case& of) : case_(of), meet_(of.world) {
    for (int r = 0; r < of.world; ++r) mine_.push_back({this, r});
    locals_.resize(static_cast<size_t>(of.world));
    const auto mesh = std::make_shared<Mesh>(of.mesh, std::vector<std::string>{}, of.rank_array);
    for (const Param& p : of.params) layouts_.push_back(viewed(p, layout_of(p, mesh)));
  }

  /// Sets the functions in the settings of a rank. The owners are all ranks in turn, including
  /// ranks that hold no element.
  void serve(muonrt::OptimizerSettings& settings, int rank) {
    settings.exchange_callbacks = {&mine_[static_cast<size_t>(rank)], &gather, &redistribute};
    const int world = case_.world;
    settings.assign_owner = [world](int64_t param, const auto&, const auto&, int32_t* owner) {
      *owner = static_cast<int32_t>((param * 5 + 2) % world);
      return 0;
    };
  }

  /// The given call (gathers and redistributions counted together, from 0) of a rank returns
  /// `code`.
  void fail(int rank, int64_t call, int code) {
    fail_rank_ = rank;
    fail_call_ = call;
    fail_code_ = code;
  }

  int64_t calls() const { return calls_; }  // summed over ranks

 private:
  using Mesh = muonrt::Mesh;
  struct Mine {
    Board* board;
    int rank;
    int64_t calls = 0;
  };

  size_t width() const { return static_cast<size_t>(size_of(case_.settings.transport_dtype)); }

  /// Copies this rank's elements between its shard and the whole tensor.
  template <class Copy>
  void each(int64_t param, int rank, Copy copy) const {
    for_each_element(layouts_[static_cast<size_t>(param)], rank, [&](int64_t element, int64_t at) {
      copy(static_cast<size_t>(element) * width(), static_cast<size_t>(at) * width());
    });
  }

  int count(Mine& mine) {
    ++calls_;
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
        b.each(param, r, [&](size_t element, size_t at) {
          std::memcpy(static_cast<char*>(full) + element,
                      static_cast<const char*>(b.locals_[static_cast<size_t>(r)]) + at, b.width());
        });
      }
    } else if (full) {
      return 99;  // promised to be null
    }
    b.meet_.arrive_and_wait();
    return b.count(mine);
  }

  static int redistribute(void* state, int64_t param, int32_t owner, const void* full, void* local,
                          void*) {
    Mine& mine = *static_cast<Mine*>(state);
    Board& b = *mine.board;
    if (mine.rank == owner) b.full_ = full;
    b.meet_.arrive_and_wait();
    b.each(param, mine.rank, [&](size_t element, size_t at) {
      std::memcpy(static_cast<char*>(local) + at, static_cast<const char*>(b.full_) + element,
                  b.width());
    });
    b.meet_.arrive_and_wait();
    return b.count(mine);
  }

  const Case& case_;
  std::vector<muonrt::Layout> layouts_;
  std::vector<Mine> mine_;
  std::vector<const void*> locals_;
  const void* full_ = nullptr;
  std::barrier<> meet_;
  std::atomic<int64_t> calls_{0};
  int fail_rank_ = -1, fail_code_ = 0;
  int64_t fail_call_ = -1;
};

}  // namespace world
