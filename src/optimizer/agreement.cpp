#include "optimizer/agreement.hpp"

#include <algorithm>
#include <cstring>

#include "base/hash.hpp"

namespace muonrt {

namespace {

struct Report {
  int32_t status;
  char message[1020];
};

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
    const size_t length = std::min(mine->message().size(), sizeof report.message - 1);
    std::memcpy(report.message, mine->message().data(), length);
  }
  std::vector<Report> all(static_cast<size_t>(comm.size()));
  comm.allgather(&report, all.data(), sizeof report);
  for (size_t r = 0; r < all.size(); ++r) {
    if (all[r].status == 0) continue;
    all[r].message[sizeof report.message - 1] = 0;
    throw Error(static_cast<Status>(all[r].status),
                all.size() == 1 ? all[r].message : cat("rank ", r, ": ", all[r].message));
  }
}

void together(Comm& comm, const std::function<void()>& work) { agree(comm, error_of(work)); }

uint64_t Fingerprint::hash() const {
  Hash hash;
  for (const Line& line : lines_) {
    hash.bytes(line.label);
    hash.bytes(line.value);
  }
  return hash.digest();
}

// Label and value never hold a newline: names with control characters are refused at the C face.
std::string Fingerprint::serialize() const {
  std::string text;
  for (const Line& line : lines_) text += line.label + '\n' + line.value + '\n';
  return text;
}

std::vector<Fingerprint::Line> Fingerprint::parse(const std::string& text) {
  std::vector<Line> lines;
  size_t at = 0;
  const auto next = [&] {
    const size_t end = std::min(text.find('\n', at), text.size());
    std::string part = text.substr(at, end - at);
    at = end + 1;
    return part;
  };
  while (at < text.size()) {
    std::string label = next();
    lines.push_back({std::move(label), next()});
  }
  return lines;
}

std::string Fingerprint::difference(const std::vector<std::vector<Line>>& tables) {
  const auto line = [&](size_t rank, size_t i) {
    return i < tables[rank].size() ? tables[rank][i] : Line{"end of the list", "absent"};
  };
  size_t longest = 0;
  for (const auto& table : tables) longest = std::max(longest, table.size());
  for (size_t i = 0; i < longest; ++i) {
    for (size_t r = 1; r < tables.size(); ++r) {
      const Line a = line(0, i), b = line(r, i);
      if (a == b) continue;
      const bool same_label = a.label == b.label;
      return cat("ranks disagree: ", a.label, " is ", a.value, " on rank 0 and ",
                 same_label ? b.value : cat(b.label, " ", b.value), " on rank ", r,
                 " (everything but the buffers must be equal); pass the same on every rank");
    }
  }
  return "ranks disagree, but their tables are equal: a hash collision; rename a parameter";
}

void Fingerprint::compare(Comm& comm) const {
  const uint64_t mine = hash();
  std::vector<uint64_t> hashes(static_cast<size_t>(comm.size()));
  comm.allgather(&mine, hashes.data(), sizeof mine);
  if (std::all_of(hashes.begin(), hashes.end(), [&](uint64_t h) { return h == hashes[0]; })) return;

  const std::string text = serialize();
  const auto bytes = static_cast<int64_t>(text.size());
  std::vector<int64_t> sizes(hashes.size());
  comm.allgather(&bytes, sizes.data(), sizeof bytes);
  const auto longest = static_cast<size_t>(*std::max_element(sizes.begin(), sizes.end()));
  std::vector<char> padded(longest, 0), all(longest * hashes.size());
  std::copy(text.begin(), text.end(), padded.begin());
  comm.allgather(padded.data(), all.data(), static_cast<int64_t>(longest));
  std::vector<std::vector<Line>> tables;
  for (size_t r = 0; r < hashes.size(); ++r) {
    tables.push_back(parse({all.data() + r * longest, static_cast<size_t>(sizes[r])}));
  }
  throw Error(Status::kMismatch, difference(tables));
}

}  // namespace muonrt
