#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/json_value.hpp"

namespace muonrt {

/// Builds a tree from untrusted JSON without recursion. Stops at the first value that exceeds a
/// limit and at the first key that occurs twice in an object.
/// @tparam Tree  Provides the type Value and the following functions. of, number(uint64_t),
///     make_object and make_list create a value. is_list and contains query one. append and insert
///     add a value and return a reference to the stored value. quoted formats a key for a message.
template <class Tree>
class JsonBuilder : public nlohmann::json_sax<nlohmann::json> {
 public:
  using Value = typename Tree::Value;

  explicit JsonBuilder(const JsonLimits& limits) : limits_(limits) {}

  /// Parses one JSON value. The text must be UTF-8 without a byte order mark and without NUL
  /// characters.
  /// @return  A description of the problem, or "" if there is none.
  std::string parse(std::string_view text) {
    // nlohmann-json would skip a byte order mark and would treat NUL as the end of the text.
    if (text.starts_with("\xef\xbb\xbf"))
      return "invalid JSON: the text begins with a byte order mark; remove it";
    if (const size_t nul = text.find('\0'); nul != text.npos)
      return "invalid JSON at byte " + std::to_string(nul) + ": the byte is NUL; remove it";
    try {
      return nlohmann::json::sax_parse(text.begin(), text.end(), this) ? "" : problem_;
    } catch (const nlohmann::json::exception& e) {
      return e.what();
    }
  }
  Value take() { return std::move(root_); }

  bool null() override { return put(Tree::of(nullptr)); }
  bool boolean(bool v) override { return put(Tree::of(v)); }
  bool number_integer(number_integer_t v) override { return put(Tree::of(v)); }
  bool number_unsigned(number_unsigned_t v) override { return put(Tree::number(v)); }
  bool number_float(number_float_t v, const string_t&) override { return put(Tree::of(v)); }
  bool string(string_t& v) override { return put(Tree::of(std::move(v))); }
  bool binary(binary_t&) override { return fail("binary value"); }
  bool start_object(std::size_t) override { return open(Tree::make_object()); }
  bool start_array(std::size_t) override { return open(Tree::make_list()); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }
  bool key(string_t& v) override {
    if (Tree::contains(*open_.back(), v))
      return fail("the key " + Tree::quoted(v) + " occurs twice");
    key_ = std::move(v);
    return count();
  }
  bool parse_error(std::size_t position, const std::string&,
                   const nlohmann::json::exception& e) override {
    std::string reason = e.what();
    // Messages of nlohmann-json begin with the name of the library and an error number in brackets.
    if (const auto end = reason.find("] "); end != std::string::npos) reason.erase(0, end + 2);
    if (reason.size() > 300) reason = reason.substr(0, 300) + "...";
    // The reason quotes the last input, which may be binary.
    for (char& c : reason)
      if (c < 0x20 || c > 0x7e) c = '?';
    return fail("invalid JSON at byte " + std::to_string(position) + ": " + reason);
  }

 protected:
  bool fail(std::string problem) {
    if (problem_.empty()) problem_ = std::move(problem);
    return false;
  }
  /// Returns the objects and lists that are currently open, outermost first.
  const std::vector<Value*>& around() const { return open_; }
  /// Counts one value or key. Reports an error if the number exceeds the limit.
  virtual bool count() {
    return ++values_ <= limits_.values ||
           fail("more than " + std::to_string(limits_.values) + " values");
  }
  /// Called when an object or list has been opened. It is the last element of `around()`.
  virtual void began() {}
  /// Called when a value is complete. `around()` then returns the open objects and lists that
  /// contain it.
  virtual void ended(Value&) {}

  const JsonLimits limits_;
  std::string key_;  // the key of the next value

 private:
  Value* place(Value v) {
    if (open_.empty()) {
      root_ = std::move(v);
      return &root_;
    }
    Value& parent = *open_.back();
    return Tree::is_list(parent) ? &Tree::append(parent, std::move(v))
                                 : &Tree::insert(parent, std::move(key_), std::move(v));
  }
  bool put(Value v) {
    if (!count()) return false;
    ended(*place(std::move(v)));
    return true;
  }
  bool open(Value v) {
    if (std::ssize(open_) >= limits_.depth)
      return fail("nested deeper than " + std::to_string(limits_.depth) + " levels");
    open_.push_back(place(std::move(v)));
    began();
    return count();
  }
  bool close() {
    Value* const value = open_.back();
    open_.pop_back();
    ended(*value);
    return true;
  }

  Value root_ = Tree::of(nullptr);
  // Nothing is added to a value while one of its children is open, so these pointers remain valid.
  std::vector<Value*> open_;
  std::string problem_;
  size_t values_ = 0;
};

}  // namespace muonrt
