#include "optimizer/agreement.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <span>

#include "base/hash.hpp"
#include "base/peer_status.hpp"

namespace muonrt {

/// An entry in the form that the ranks exchange. Texts that are too long are truncated.
struct AgreementTable::SentEntry {
  uint64_t hash;
  char label[504], value[3584];
};

namespace {

template <size_t kCapacity>
void put(char (&to)[kCapacity], const std::string& text) noexcept {
  const auto copy = [&](const std::string& from) {
    const size_t length = std::min(from.size(), kCapacity - 1);
    std::memcpy(to, from.data(), length);
    to[length] = 0;
  };
  try {
    copy(shorten_names(text));
  } catch (const std::bad_alloc&) {
    copy(text);
  }
}

/// Gathers a small value from every rank over `comm`. Does not allocate if there are at most kFew
/// ranks.
template <class T>
class RankValues {
 public:
  RankValues(Comm& comm, const T& own) : count_(static_cast<size_t>(comm.size())) {
    if (count_ > kFew) run_or_abort(comm, [&] { many_.resize(count_); });
    comm.allgather(&own, data(), sizeof own);
  }
  const T& operator[](size_t rank) const { return const_cast<RankValues*>(this)->data()[rank]; }
  /// Returns the first rank whose value satisfies `condition`, or the number of ranks if there is
  /// none.
  template <class Condition>
  size_t find(Condition condition) const {
    size_t rank = 0;
    while (rank < count_ && !condition((*this)[rank])) ++rank;
    return rank;
  }
  bool equal() const {
    return find([&](const T& value) { return !(value == (*this)[0]); }) == count_;
  }
  size_t count() const { return count_; }

 private:
  static constexpr size_t kFew = 512;
  T* data() { return count_ > kFew ? many_.data() : few_.data(); }

  size_t count_;
  std::array<T, kFew> few_{};
  std::vector<T> many_;
};

/// The first message of a rank. If every rank has memory for all texts, a second message contains
/// the text of the rank's error.
struct ErrorHeader {
  int32_t status;    // 0 means no error
  int32_t has_room;  // 1 if the rank has memory for the texts of all ranks
};
struct ErrorText {
  char text[1024];
};

/// A summary of a rank's table, which the rank sends before any entry.
struct TableHeader {
  uint64_t hash;
  int64_t entries;
  int32_t complete, has_room;
};

/// Resizes `room` so that it has one element for each rank. Returns false if the allocation fails.
template <class T>
bool make_room(std::vector<T>& room, Comm& comm) {
  return !capture_error([&] { room.resize(static_cast<size_t>(comm.size())); });
}

}  // namespace

std::optional<Error> find_common_error(Comm& comm, const std::optional<Error>& own_error) {
  static_assert(sizeof(ErrorText) <= kExplanationBytes);
  std::vector<ErrorText> texts;
  const bool has_room = make_room(texts, comm);
  const RankValues<ErrorHeader> all(
      comm, {own_error ? static_cast<int32_t>(own_error->status()) : 0, has_room});
  const size_t first = all.find([](const ErrorHeader& s) { return s.status != 0; });
  if (first == all.count()) return std::nullopt;
  const Status status = status_of_peer(all[first].status);
  const auto rank = static_cast<int32_t>(first);
  Error error(status, rank);
  if (all.find([](const ErrorHeader& s) { return !s.has_room; }) == all.count()) {
    ErrorText text{};
    if (own_error) put(text.text, own_error->message());
    comm.allgather(&text, texts.data(), sizeof text);
    texts[first].text[sizeof text - 1] = 0;
    error = error_with_message(
        status, [&] { return std::string(texts[first].text); }, rank);
  }
  return all.count() == 1 ? error : error.with_rank(comm.rank());
}

void throw_common_error(Comm& comm, const std::optional<Error>& own_error) {
  if (const auto error = find_common_error(comm, own_error)) throw *error;
}

uint64_t AgreementTable::prefix_hash(int64_t count) const {
  Hash hash;
  for (const Entry& entry : std::span(entries_).first(static_cast<size_t>(count))) {
    hash.bytes(entry.label);
    hash.bytes(entry.value);
  }
  return hash.digest();
}

std::optional<Error> AgreementTable::find_mismatch(Comm& comm) const {
  static_assert(sizeof(SentEntry) <= kExplanationBytes);
  std::vector<SentEntry> room;
  const bool has_room = make_room(room, comm);
  const RankValues<TableHeader> headers(
      comm, {prefix_hash(std::ssize(entries_)), std::ssize(entries_), complete_, has_room});
  const size_t incomplete = headers.find([](const TableHeader& h) { return !h.complete; });
  const size_t other =
      headers.find([&](const TableHeader& h) { return h.hash != headers[0].hash; });
  if (other == headers.count() && incomplete == headers.count()) return std::nullopt;
  const size_t no_memory =
      std::min(incomplete, headers.find([](const TableHeader& h) { return !h.has_room; }));
  if (no_memory < headers.count())
    return make_error(Status::kMismatch,
                      "ranks disagree, but the difference is unknown, because rank ", no_memory,
                      " is out of memory; pass the same values on every rank");
  int64_t longest = 0;
  for (size_t r = 0; r < headers.count(); ++r) longest = std::max(longest, headers[r].entries);
  return find_entry_mismatch(comm, longest, room);
}

// Finds the first entry that differs by bisection: it compares hashes of the first n entries. If
// one table is shorter than another, the entry after its last one differs.
// @param limit  Number of entries in the longest table.
std::optional<Error> AgreementTable::find_entry_mismatch(Comm& comm, int64_t limit,
                                                         std::vector<SentEntry>& all) const {
  const int64_t count = std::ssize(entries_);
  int64_t equal = 0, different = limit;
  while (different - equal > 1) {
    const int64_t middle = equal + (different - equal) / 2;
    const uint64_t own = middle > count ? ~prefix_hash(count) : prefix_hash(middle);
    (RankValues<uint64_t>(comm, own).equal() ? equal : different) = middle;
  }
  static const Entry kEnd{"end of the list", "absent"};  // short texts, which need no allocation
  const Entry& entry = equal >= count ? kEnd : entries_[static_cast<size_t>(equal)];
  Hash hash;
  hash.bytes(entry.label);
  hash.bytes(entry.value);
  SentEntry sent{};
  sent.hash = hash.digest();
  put(sent.label, entry.label);
  put(sent.value, entry.value);
  comm.allgather(&sent, all.data(), sizeof sent);
  for (SentEntry& x : all) x.label[sizeof x.label - 1] = x.value[sizeof x.value - 1] = 0;
  const auto other = std::find_if(all.begin(), all.end(),
                                  [&](const SentEntry& x) { return x.hash != all[0].hash; });
  if (other == all.end())
    return make_error(Status::kMismatch,
                      "ranks disagree, but the difference is unknown, because of a hash collision; "
                      "rename a parameter");
  const SentEntry& first = all[0];
  const bool same_label = std::strcmp(first.label, other->label) == 0;
  return make_error(Status::kMismatch, "ranks disagree: ", first.label, " is ", first.value,
                    " on rank 0 and ", same_label ? "" : other->label, same_label ? "" : " ",
                    other->value, " on rank ", other - all.begin(),
                    "; pass the same value on every rank");
}

void AgreementTable::require_equal(Comm& comm) const {
  if (const auto error = find_mismatch(comm)) throw *error;
}

}  // namespace muonrt
