#include "layout/mesh.hpp"

#include <algorithm>
#include <numeric>

#include "base/checked.hpp"
#include "base/error.hpp"
#include "base/hash.hpp"

namespace muonrt {

namespace {

int64_t checked_size(const std::vector<int64_t>& shape) {
  int64_t size = 1;
  for (size_t k = 0; k < shape.size(); ++k) {
    MUONRT_REQUIRE(shape[k] >= 1, Status::kInvalidArgument, "mesh ", shape, ": dim ", k,
                   " has size ", shape[k], ", but must be at least 1; leave the dim out or use 1");
    MUONRT_REQUIRE(shape[k] <= Mesh::kMaxRanks / size, Status::kInvalidArgument, "mesh ", shape,
                   " has more than ", Mesh::kMaxRanks, " ranks; give the sizes of the real mesh");
    size *= shape[k];
  }
  return size;
}

std::vector<std::string> default_names(size_t dims) {
  std::vector<std::string> out;
  for (size_t k = 0; k < dims; ++k) out.push_back(cat("d", k));
  return out;
}

void check_names(const std::vector<std::string>& names, size_t dims) {
  MUONRT_REQUIRE(names.size() == dims, Status::kInvalidArgument, "mesh: ", names.size(),
                 " names for ", dims, " dims; give one name for each dim, or none");
  for (size_t k = 0; k < dims; ++k) {
    MUONRT_REQUIRE(!names[k].empty(), Status::kInvalidArgument, "mesh: the name of dim ", k,
                   " is empty; name every dim, or none");
    MUONRT_REQUIRE(std::find(names.begin(), names.begin() + static_cast<ptrdiff_t>(k), names[k]) ==
                       names.begin() + static_cast<ptrdiff_t>(k),
                   Status::kInvalidArgument, "mesh: two dims are named '", names[k],
                   "'; give distinct names");
  }
}

}  // namespace

Mesh::Mesh(std::vector<int64_t> shape, std::vector<std::string> names, std::vector<int32_t> ranks)
    : shape_(std::move(shape)),
      names_(std::move(names)),
      size_(checked_size(shape_)),
      computed_(std::make_shared<RanksAndHash>()) {
  if (names_.empty()) names_ = default_names(shape_.size());
  check_names(names_, shape_.size());
  strides_.assign(shape_.size(), 1);
  for (size_t k = shape_.size(); k-- > 1;) strides_[k - 1] = strides_[k] * shape_[k];

  if (ranks.empty()) return;
  MUONRT_REQUIRE(std::ssize(ranks) == size_, Status::kInvalidArgument, "mesh ", shape_, ": ",
                 "there are ", ranks.size(), " ranks for ", size_,
                 " positions; list one rank per position");
  by_rank_.reserve(ranks.size());
  for (size_t i = 0; i < ranks.size(); ++i) {
    MUONRT_REQUIRE(ranks[i] >= 0, Status::kInvalidArgument, "mesh: rank ", ranks[i],
                   " at position ", i, " is negative; ranks count from 0");
    by_rank_.emplace_back(ranks[i], static_cast<int32_t>(i));
  }
  std::sort(by_rank_.begin(), by_rank_.end());
  for (size_t i = 1; i < by_rank_.size(); ++i) {
    MUONRT_REQUIRE(by_rank_[i].first != by_rank_[i - 1].first, Status::kInvalidArgument,
                   "mesh: rank ", by_rank_[i].first, " occurs at positions ",
                   by_rank_[i - 1].second, " and ", by_rank_[i].second, "; list every rank once");
  }
  computed_->ranks = std::move(ranks);
}

const Mesh::RanksAndHash& Mesh::ranks_and_hash() const {
  std::call_once(computed_->once, [&] {
    std::vector<int32_t>& ranks = computed_->ranks;
    if (ranks.empty()) {
      ranks.resize(static_cast<size_t>(size_));
      std::iota(ranks.begin(), ranks.end(), 0);
    }
    Hash hash;
    for (const int64_t n : shape_) {
      if (n > 1) hash.value(n);
    }
    hash.value(size_);
    for (const int32_t rank : ranks) hash.value(static_cast<int64_t>(rank));
    computed_->hash = hash.digest();
  });
  return *computed_;
}

bool Mesh::is_made_of(const std::vector<int64_t>& shape, const std::vector<std::string>& names,
                      const std::vector<int32_t>& ranks) const {
  return shape_ == shape && names_ == (names.empty() ? default_names(shape.size()) : names) &&
         (ranks.empty() ? by_rank_.empty() : this->ranks() == ranks);
}

int64_t Mesh::position_of(int rank) const {
  if (by_rank_.empty()) return rank >= 0 && rank < size() ? rank : -1;
  const auto at =
      std::lower_bound(by_rank_.begin(), by_rank_.end(), std::pair<int32_t, int32_t>(rank, 0));
  return at != by_rank_.end() && at->first == rank ? at->second : -1;
}

std::optional<std::vector<int64_t>> Mesh::coords(int rank) const {
  const int64_t position = position_of(rank);
  if (position < 0) return std::nullopt;
  std::vector<int64_t> out;
  for (int k = 0; k < dims(); ++k) out.push_back(coord(position, k));
  return out;
}

int Mesh::rank_at(const std::vector<int64_t>& coords) const {
  MUONRT_REQUIRE(coords.size() == shape_.size(), Status::kInvalidArgument, "mesh ", describe(),
                 ": there are ", coords.size(), " coordinates for ", dims(),
                 " dims; give one for each dim");
  int64_t position = 0;
  for (size_t k = 0; k < coords.size(); ++k) {
    MUONRT_REQUIRE(coords[k] >= 0 && coords[k] < shape_[k], Status::kInvalidArgument, "mesh ",
                   describe(), ": coordinate ", coords[k], " is outside dim '", names_[k],
                   "'; give 0 to ", shape_[k] - 1);
    position += coords[k] * strides_[k];
  }
  return ranks()[static_cast<size_t>(position)];
}

int Mesh::dim_of(std::string_view name) const {
  const auto at = std::find(names_.begin(), names_.end(), name);
  MUONRT_REQUIRE(at != names_.end(), Status::kInvalidArgument, "mesh has no dim '", name,
                 "'; it has ", names_);
  return static_cast<int>(at - names_.begin());
}

int64_t Mesh::count_over(const std::vector<int>& dims) const {
  int64_t out = 1;
  for (const int k : dims) out *= shape_[static_cast<size_t>(k)];
  return out;
}

int64_t Mesh::index_over(const std::vector<int>& dims, int64_t position) const {
  int64_t out = 0;
  for (const int k : dims) out = out * shape_[static_cast<size_t>(k)] + coord(position, k);
  return out;
}

int64_t Mesh::offset_over(const std::vector<int>& dims, int64_t shard) const {
  int64_t out = 0;
  for (size_t i = dims.size(); i-- > 0;) {
    const auto k = static_cast<size_t>(dims[i]);
    out += shard % shape_[k] * strides_[k];
    shard /= shape_[k];
  }
  return out;
}

std::string Mesh::describe() const {
  if (shape_.empty()) return "one rank";
  std::string out;
  for (size_t k = 0; k < shape_.size(); ++k) {
    out += cat(k ? ", " : "", names_[k], "=", shape_[k]);
  }
  return out;
}

}  // namespace muonrt
