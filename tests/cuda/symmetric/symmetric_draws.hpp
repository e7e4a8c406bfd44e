#pragma once

#include <algorithm>
#include <array>
#include <map>
#include <random>
#include <vector>

#include "cuda/symmetric/symmetric_cases.hpp"

// Cases for sweeps over all n: depth, epilogue and dtype are drawn for each n and batch, so that
// none follows from another; what a sweep has met is counted.
namespace cuda_test {

/// Depths beside the ring of sm_90a's kernels, four stages of 64 terms.
enum class Depth {
  kOneStage,
  kSeveral,  // two or three, the last one not full
  kRing,     // four, not full or full to the last term; or more
};
constexpr int64_t kMostDepth = 330;
inline Depth depth_of(const SymmetricCase& c) {
  return c.k <= 64 ? Depth::kOneStage : c.k <= 192 ? Depth::kSeveral : Depth::kRing;
}

/// Four epilogues: of the sum alone, with D, with D and all scales, with another B than A.
constexpr int kEpilogues = 4;
inline SymmetricCase with_epilogue(SymmetricCase c, int64_t which) {
  if (which == 1) c.with_d = true, c.beta = 3.0f;
  if (which == 2) c.with_d = true, c.alpha = -2.0f, c.beta = 1.0f, c.gamma = 7.0f;
  if (which == 3) c.two_operands = true, c.gamma = -5.0f;
  return c;
}
inline int epilogue_of(const SymmetricCase& c) {
  return c.two_operands ? 3 : !c.with_d ? 0 : c.gamma == 0.0f ? 1 : 2;
}

/// Sweeps draw other cases each.
enum class Sweep : uint64_t { kOp = 1, kSmall, kMedium };

/// A random number below `end`, of a sweep, n and purpose.
inline int64_t draw(Sweep sweep, int64_t n, int64_t purpose, int64_t end) {
  const uint64_t bits = bits_at(static_cast<uint64_t>(sweep), n * 64 + purpose);
  return static_cast<int64_t>(bits >> 33) % end;
}

/// Cards 0, 1 ... in random order; when each has been drawn, all once more in another.
class Deck {
 public:
  Deck() = default;
  Deck(int64_t cards, uint64_t seed) : random_(seed) {
    for (int64_t card = 0; card < cards; ++card) cards_.push_back(card);
  }
  int64_t next() {
    for (size_t left = at_ == 0 ? cards_.size() : 0; left > 1; --left)
      std::swap(cards_[left - 1], cards_[random_() % left]);
    const int64_t card = cards_[at_];
    at_ = (at_ + 1) % cards_.size();
    return card;
  }

 private:
  std::vector<int64_t> cards_;
  size_t at_ = 0;
  std::mt19937_64 random_;
};

/// A depth of a class.
inline int64_t drawn_depth(Depth depth, std::mt19937_64& random) {
  const auto below = [&](uint64_t end) { return static_cast<int64_t>(random() % end); };
  if (depth == Depth::kOneStage) return 1 + below(below(4) == 0 ? 64 : 32);
  if (depth == Depth::kSeveral) return below(2) == 0 ? 65 + below(63) : 129 + below(63);
  const int64_t kind = below(4);
  return kind == 0 ? 256 : kind == 1 ? 257 + below(kMostDepth - 256) : 193 + below(63);
}

/// One case for each n to 600 and batch of 1 to 4; for n above `most_of_all` for one batch alone.
/// Deep ones in all sizes, in large ones more seldom: there they are what takes time.
/// @param stride  of n above `most_of_all`.
inline std::vector<SymmetricCase> drawn_cases(Sweep sweep, int64_t most_of_all = 600,
                                              int64_t stride = 1) {
  std::mt19937_64 random(static_cast<uint64_t>(sweep));
  struct Decks {
    int64_t most, shallow;  // n; cards of one stage for each of the other depths
    std::array<Deck, 4> decks = {};
  };
  std::array<Decks, 3> groups = {
      {{128, 6}, {384, stride > 1 ? 6 : 10}, {600, stride > 1 ? 6 : 14}}};
  for (Decks& group : groups)
    for (Deck& deck : group.decks) deck = Deck(kEpilogues * (2 + group.shallow), random());
  Deck batches(4, random());
  std::vector<SymmetricCase> cases;
  for (int64_t n = 1; n <= 600; n += n < most_of_all ? 1 : stride) {
    const int64_t only = 1 + batches.next();
    Decks& group =
        *std::find_if(groups.begin(), groups.end(), [&](const Decks& g) { return n <= g.most; });
    for (int64_t count = 1; count <= 4; ++count) {
      if (n > most_of_all && count != only) continue;
      const bool one_deck = group.most > most_of_all;
      const int64_t card = group.decks[one_deck ? 0 : static_cast<size_t>(count - 1)].next();
      const Depth depth = card < kEpilogues       ? Depth::kRing
                          : card < 2 * kEpilogues ? Depth::kSeveral
                                                  : Depth::kOneStage;
      SymmetricCase c = with_epilogue({n, drawn_depth(depth, random), count}, card % kEpilogues);
      if (random() % 2 == 0) c.dtype = muonrt::DType::kF16;
      cases.push_back(c);
    }
  }
  return cases;
}

/// How often combinations of some properties have come up.
class Coverage {
 public:
  void note(const std::vector<int64_t>& combination) { ++met_[combination]; }
  /// Of the rarest one, if there are `all` of them.
  int64_t least(size_t all) const {
    if (met_.size() != all) return 0;
    return std::min_element(met_.begin(), met_.end(),
                            [](const auto& a, const auto& b) { return a.second < b.second; })
        ->second;
  }

 private:
  std::map<std::vector<int64_t>, int64_t> met_;
};

}  // namespace cuda_test
