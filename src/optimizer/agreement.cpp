#include "optimizer/agreement.hpp"

#include <algorithm>
#include <cstring>

#include "base/hash.hpp"
#include "base/peer_status.hpp"

namespace muonrt {

namespace {

template <size_t kCapacity>
void put(char (&to)[kCapacity], const std::string& text) {
  const size_t length = std::min(text.size(), kCapacity - 1);
  std::memcpy(to, text.data(), length);
  to[length] = 0;
}

struct Report {
  int32_t status;
  char message[1020];
};

/// A line of a table as it is sent.
struct SentLine {
  uint64_t hash;
  char label[504], value[3584];
};
static_assert(sizeof(SentLine) == 4096);

template <class T>
std::vector<T> gather(Comm& comm, const T& mine) {
  std::vector<T> all(static_cast<size_t>(comm.size()));
  comm.allgather(&mine, all.data(), sizeof mine);
  return all;
}

template <class T>
bool all_equal(const std::vector<T>& list) {
  return std::all_of(list.begin(), list.end(), [&](const T& x) { return x == list[0]; });
}

}  // namespace

std::optional<Error> error_of(const std::function<void()>& work) {
  try {
    work();
  } catch (const Error& e) {
    return e;
  } catch (const std::bad_alloc&) {
    return Error(Status::kOutOfMemory, "host memory is exhausted; use fewer or smaller buffers");
  } catch (const std::exception& e) {
    return Error(Status::kInternal, cat("internal: ", e.what()));
  }
  return std::nullopt;
}

void agree(Comm& comm, const std::optional<Error>& mine) {
  Report report{};
  if (mine) {
    report.status = static_cast<int32_t>(mine->status());
    put(report.message, shorten_names(mine->message()));
  }
  std::vector<Report> all = gather(comm, report);
  for (size_t r = 0; r < all.size(); ++r) {
    if (all[r].status == 0) continue;
    all[r].message[sizeof report.message - 1] = 0;
    const Error first(status_of_peer(all[r].status), all[r].message, static_cast<int32_t>(r));
    throw all.size() == 1 ? first : first.named(comm.rank());
  }
}

void together(Comm& comm, const std::function<void()>& work) { agree(comm, error_of(work)); }

/// [k]: hash of the first k lines.
std::vector<uint64_t> Fingerprint::prefixes() const {
  Hash hash;
  std::vector<uint64_t> out = {hash.digest()};
  for (const Line& line : lines_) {
    hash.bytes(line.label);
    hash.bytes(line.value);
    out.push_back(hash.digest());
  }
  return out;
}

void Fingerprint::compare(Comm& comm) const {
  const std::vector<uint64_t> mine = prefixes();
  const std::vector<uint64_t> whole = gather(comm, mine.back());
  if (all_equal(whole)) return;

  // The first line that differs, in a table that a short one ends before.
  const std::vector<int64_t> counts = gather(comm, std::ssize(lines_));
  int64_t equal = 0, different = *std::max_element(counts.begin(), counts.end());
  while (different - equal > 1) {
    const int64_t middle = equal + (different - equal) / 2;
    const bool ended = middle > std::ssize(lines_);
    const uint64_t prefix = ended ? ~mine.back() : mine[static_cast<size_t>(middle)];
    (all_equal(gather(comm, prefix)) ? equal : different) = middle;
  }
  const bool ended = equal >= std::ssize(lines_);
  const Line line = ended ? Line{"end of the list", "absent"} : lines_[static_cast<size_t>(equal)];
  Hash hash;
  hash.bytes(line.label);
  hash.bytes(line.value);
  SentLine sent{};
  sent.hash = hash.digest();
  put(sent.label, shorten_names(line.label));
  put(sent.value, shorten_names(line.value));
  std::vector<SentLine> all = gather(comm, sent);
  for (SentLine& x : all) x.label[sizeof x.label - 1] = x.value[sizeof x.value - 1] = 0;
  const auto other = std::find_if(all.begin(), all.end(),
                                  [&](const SentLine& x) { return x.hash != all[0].hash; });
  MUONRT_REQUIRE(
      other != all.end(), Status::kMismatch,
      "ranks disagree, but their tables are equal: a hash collision; rename a parameter");
  const SentLine& first = all[0];
  const bool same_label = std::strcmp(first.label, other->label) == 0;
  throw Error(
      Status::kMismatch,
      cat("ranks disagree: ", first.label, " is ", first.value, " on rank 0 and ",
          same_label ? "" : cat(other->label, " "), other->value, " on rank ", other - all.begin(),
          " (it must be equal on all ranks); pass the same on every rank"));
}

}  // namespace muonrt
