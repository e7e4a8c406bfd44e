#include "optimizer/agreement.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <span>

#include "base/hash.hpp"
#include "base/peer_status.hpp"

namespace muonrt {

/// A line as it is sent.
struct AgreementTable::SentEntry {
  uint64_t hash;
  char label[504], value[3584];
};

namespace {

template <size_t kCapacity>
void put(char (&to)[kCapacity], const std::string& text) noexcept {
  const auto keep = [&](const std::string& words) {
    const size_t length = std::min(words.size(), kCapacity - 1);
    std::memcpy(to, words.data(), length);
    to[length] = 0;
  };
  try {
    keep(shorten_names(text));
  } catch (const std::bad_alloc&) {
    keep(text);
  }
}

/// A few bytes of every rank; up to kFew ranks they lie here.
template <class T>
class RankValues {
 public:
  RankValues(Comm& comm, const T& mine) : count_(static_cast<size_t>(comm.size())) {
    if (count_ > kFew) run_or_abort(comm, [&] { many_.resize(count_); });
    comm.allgather(&mine, data(), sizeof mine);
  }
  const T& operator[](size_t rank) const { return const_cast<RankValues*>(this)->data()[rank]; }
  /// The first rank of which `holds(word)`; the number of ranks if there is none.
  template <class Holds>
  size_t find(Holds holds) const {
    size_t rank = 0;
    while (rank < count_ && !holds((*this)[rank])) ++rank;
    return rank;
  }
  bool equal() const {
    return find([&](const T& word) { return !(word == (*this)[0]); }) == count_;
  }
  size_t count() const { return count_; }

 private:
  static constexpr size_t kFew = 512;
  T* data() { return count_ > kFew ? many_.data() : few_.data(); }

  size_t count_;
  std::array<T, kFew> few_{};
  std::vector<T> many_;
};

/// What a rank says before any text.
struct ErrorHeader {
  int32_t status;    // 0: no error
  int32_t has_room;  // for the texts of all
};
struct ErrorText {
  char words[1024];
};

/// The size of a table, and its hash.
struct TableHeader {
  uint64_t hash;
  int64_t lines;
  int32_t whole, has_room;
};
template <class T>
bool make_room(std::vector<T>& room, Comm& comm) {
  return !capture_error([&] { room.resize(static_cast<size_t>(comm.size())); });
}

}  // namespace

std::optional<Error> find_common_error(Comm& comm, const std::optional<Error>& mine) {
  static_assert(sizeof(ErrorText) <= kExplanationBytes);
  std::vector<ErrorText> texts;
  const bool has_room = make_room(texts, comm);
  const RankValues<ErrorHeader> all(comm,
                                    {mine ? static_cast<int32_t>(mine->status()) : 0, has_room});
  const size_t first = all.find([](const ErrorHeader& s) { return s.status != 0; });
  if (first == all.count()) return std::nullopt;
  const Status status = status_of_peer(all[first].status);
  const auto rank = static_cast<int32_t>(first);
  Error error(status, rank);
  if (all.find([](const ErrorHeader& s) { return !s.has_room; }) == all.count()) {
    ErrorText text{};
    if (mine) put(text.words, mine->message());
    comm.allgather(&text, texts.data(), sizeof text);
    texts[first].words[sizeof text - 1] = 0;
    error = error_with_message(
        status, [&] { return std::string(texts[first].words); }, rank);
  }
  return all.count() == 1 ? error : error.with_rank(comm.rank());
}

void throw_common_error(Comm& comm, const std::optional<Error>& mine) {
  if (const auto error = find_common_error(comm, mine)) throw *error;
}

/// Hash of the first lines.
uint64_t AgreementTable::prefix(int64_t lines) const {
  Hash hash;
  for (const Entry& line : std::span(entries_).first(static_cast<size_t>(lines))) {
    hash.bytes(line.label);
    hash.bytes(line.value);
  }
  return hash.digest();
}

std::optional<Error> AgreementTable::find_mismatch(Comm& comm) const {
  static_assert(sizeof(SentEntry) <= kExplanationBytes);
  std::vector<SentEntry> room;
  const bool has_room = make_room(room, comm);
  const RankValues<TableHeader> heads(
      comm, {prefix(std::ssize(entries_)), std::ssize(entries_), complete_, has_room});
  const size_t cut = heads.find([](const TableHeader& h) { return !h.whole; });
  const size_t other = heads.find([&](const TableHeader& h) { return h.hash != heads[0].hash; });
  if (other == heads.count() && cut == heads.count()) return std::nullopt;
  const size_t poor = std::min(cut, heads.find([](const TableHeader& h) { return !h.has_room; }));
  if (poor < heads.count())
    return make_error(Status::kMismatch, "ranks disagree, and rank ", poor,
                      " has no memory to find out where; pass the same on every rank");
  int64_t most = 0;
  for (size_t r = 0; r < heads.count(); ++r) most = std::max(most, heads[r].lines);
  return find_entry_mismatch(comm, most, room);
}

/// @param most  lines of a table, of which one differs, or more: one that a short one ends before.
std::optional<Error> AgreementTable::find_entry_mismatch(Comm& comm, int64_t most,
                                                         std::vector<SentEntry>& all) const {
  const int64_t count = std::ssize(entries_);
  int64_t equal = 0, different = most;
  while (different - equal > 1) {
    const int64_t middle = equal + (different - equal) / 2;
    const uint64_t mine = middle > count ? ~prefix(count) : prefix(middle);
    (RankValues<uint64_t>(comm, mine).equal() ? equal : different) = middle;
  }
  static const Entry kEnd{"end of the list", "absent"};  // short: no memory
  const Entry& line = equal >= count ? kEnd : entries_[static_cast<size_t>(equal)];
  Hash hash;
  hash.bytes(line.label);
  hash.bytes(line.value);
  SentEntry sent{};
  sent.hash = hash.digest();
  put(sent.label, line.label);
  put(sent.value, line.value);
  comm.allgather(&sent, all.data(), sizeof sent);
  for (SentEntry& x : all) x.label[sizeof x.label - 1] = x.value[sizeof x.value - 1] = 0;
  const auto other = std::find_if(all.begin(), all.end(),
                                  [&](const SentEntry& x) { return x.hash != all[0].hash; });
  if (other == all.end())
    return make_error(
        Status::kMismatch,
        "ranks disagree, but their tables are equal: a hash collision; rename a parameter");
  const SentEntry& first = all[0];
  const bool same_label = std::strcmp(first.label, other->label) == 0;
  return make_error(Status::kMismatch, "ranks disagree: ", first.label, " is ", first.value,
                    " on rank 0 and ", same_label ? "" : other->label, same_label ? "" : " ",
                    other->value, " on rank ", other - all.begin(),
                    " (it must be equal on all ranks); pass the same on every rank");
}

void AgreementTable::require_equal(Comm& comm) const {
  if (const auto error = find_mismatch(comm)) throw *error;
}

}  // namespace muonrt
