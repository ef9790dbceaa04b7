// Calls a function when it is destroyed, unless it was dismissed or moved from. Move-only; thread-compatible.
#ifndef BERTH_SERVER_REQUEST_UNDO_H_
#define BERTH_SERVER_REQUEST_UNDO_H_

#include <functional>
#include <utility>

namespace berth {

class Undo {
 public:
  // Nothing is to be undone.
  Undo() = default;
  explicit Undo(std::function<void()> undo) : undo_(std::move(undo)) {}
  Undo(Undo&& other) noexcept : undo_(std::exchange(other.undo_, nullptr)) {}
  // Calls the function that this had.
  Undo& operator=(Undo&& other) noexcept {
    if (this == &other) return *this;
    Call();
    undo_ = std::exchange(other.undo_, nullptr);
    return *this;
  }
  ~Undo() { Call(); }

  void Dismiss() { undo_ = nullptr; }

 private:
  void Call() {
    if (const std::function<void()> undo = std::exchange(undo_, nullptr)) undo();
  }

  std::function<void()> undo_;
};

}  // namespace berth

#endif  // BERTH_SERVER_REQUEST_UNDO_H_
