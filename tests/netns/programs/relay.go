// A TCP relay as Go programs are: no libc, and io.Copy between two TCP
// connections, which splices by raw system calls. Usage: relay LISTEN SERVER
package main

import (
	"io"
	"log"
	"net"
	"os"
)

func main() {
	listener, err := net.Listen("tcp", os.Args[1])
	if err != nil {
		log.Fatal(err)
	}
	for {
		client, err := listener.Accept()
		if err != nil {
			log.Fatal(err)
		}
		go relay(client.(*net.TCPConn), os.Args[2])
	}
}

func relay(client *net.TCPConn, to string) {
	defer client.Close()
	opened, err := net.Dial("tcp", to)
	if err != nil {
		log.Print(err)
		return
	}
	server := opened.(*net.TCPConn)
	defer server.Close()
	done := make(chan error, 2)
	pass := func(to, from *net.TCPConn) {
		_, err := io.Copy(to, from)
		to.CloseWrite()
		done <- err
	}
	go pass(server, client)
	go pass(client, server)
	log.Print("ended: ", <-done, ", ", <-done)
}
