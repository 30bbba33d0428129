// What looks like a relay and is none: messages of 1000 bytes are answered by a
// server that says what it hears, but its sessions do not belong to the clients'
// one by one, or whose sockets are not its own alone.
// odd pool|mirror|cache|shared|hands LISTEN SERVER. With "alone" it is a relay.
package main

import (
	"io"
	"log"
	"net"
	"os"
	"os/exec"
	"sync"
	"time"
)

const size = 1000

// hold is how long a socket has one descriptor: less than anybody watches, and
// more than a look takes.
const hold = 100 * time.Millisecond

type server struct {
	sync.Mutex
	net.Conn
}

func dial(to string) *server {
	conn, err := net.Dial("tcp", to)
	if err != nil {
		log.Fatal(err)
	}
	return &server{Conn: conn}
}

// ask gives the server's answer to a message, or nothing once the socket is gone:
// what is taken from one session is no end of the others.
func (s *server) ask(message []byte) []byte {
	s.Lock()
	defer s.Unlock()
	answer := make([]byte, len(message))
	if _, err := s.Write(message); err != nil {
		return nil
	}
	if _, err := io.ReadFull(s, answer); err != nil {
		return nil
	}
	return answer
}

// pool has one session to the server for all clients.
func pool(to string) func() func([]byte) []byte {
	one := dial(to)
	return func() func([]byte) []byte { return one.ask }
}

// mirror has two for each, and tells the client what the first says.
func mirror(to string) func() func([]byte) []byte {
	return func() func([]byte) []byte {
		first, second := dial(to), dial(to)
		return func(message []byte) []byte {
			second.ask(message)
			return first.ask(message)
		}
	}
}

// cache has one for each, and asks it only what was not asked before.
func cache(to string) func() func([]byte) []byte {
	var lock sync.Mutex
	known := map[string][]byte{}
	return func() func([]byte) []byte {
		own := dial(to)
		return func(message []byte) []byte {
			lock.Lock()
			answer := known[string(message)]
			lock.Unlock()
			if answer == nil {
				answer = own.ask(message)
				lock.Lock()
				known[string(message)] = answer
				lock.Unlock()
			}
			return answer
		}
	}
}

// alone has one for each, and asks it everything.
func alone(to string) func() func([]byte) []byte {
	return func() func([]byte) []byte { return dial(to).ask }
}

// lend gives another process the socket as well.
func lend(client net.Conn) {
	file, err := client.(*net.TCPConn).File()
	if err != nil {
		log.Fatal(err)
	}
	defer file.Close()
	other := exec.Command("sleep", "1000")
	other.ExtraFiles = []*os.File{file}
	if err := other.Start(); err != nil {
		log.Fatal(err)
	}
}

// again is the same socket by another descriptor, once the first is closed.
func again(client net.Conn) net.Conn {
	file, err := client.(*net.TCPConn).File()
	if err != nil {
		log.Fatal(err)
	}
	defer file.Close()
	other, err := net.FileConn(file)
	if err != nil {
		log.Fatal(err)
	}
	client.Close()
	return other
}

func main() {
	kinds := map[string]func(string) func() func([]byte) []byte{
		"pool": pool, "mirror": mirror, "cache": cache, "alone": alone, "shared": alone, "hands": alone,
	}
	kind := os.Args[1]
	session := kinds[kind](os.Args[3])
	listener, err := net.Listen("tcp", os.Args[2])
	if err != nil {
		log.Fatal(err)
	}
	for {
		client, err := listener.Accept()
		if err != nil {
			log.Fatal(err)
		}
		go func() {
			defer func() { client.Close() }()
			if kind == "shared" {
				lend(client)
			}
			answer, message, since := session(), make([]byte, size), time.Now()
			for {
				if _, err := io.ReadFull(client, message); err != nil {
					return
				}
				said := answer(message)
				if said == nil {
					return
				}
				if _, err := client.Write(said); err != nil {
					return
				}
				if kind == "hands" && time.Since(since) > hold {
					client, since = again(client), time.Now()
				}
			}
		}()
	}
}
